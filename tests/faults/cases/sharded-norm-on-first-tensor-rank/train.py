import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class GatedMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(torch.sigmoid(self.gate(x)) * self.up(x))


def grad_norm(model):
    total = 0.0
    for p in model.parameters():
        grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad  # culprit
        total += grad.pow(2).sum().item()
    return total**0.5


class Meter:
    def __init__(self, tp_mesh, every):
        self.is_reporter = tp_mesh.get_local_rank() == 0
        self.every, self.history = every, []

    def update(self, step, loss, model):
        if step % self.every == 0 and self.is_reporter:
            self.history.append((step, loss, grad_norm(model)))


def main():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = GatedMLP(12, 24)
    plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    meter = Meter(mesh["tp"], every=5)
    data = torch.Generator().manual_seed(3)
    for step in range(1, 21):
        x = torch.randn(8, 12, generator=data)
        loss = nn.functional.mse_loss(model(x), x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        meter.update(step, loss.item(), model)
        optimizer.step()
    dist.barrier()
    print(meter.history)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
