import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SAVE_EVERY = 3


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))  # culprit


def build(mesh, width=32, depth=3):
    torch.manual_seed(0)
    model = nn.Sequential(*[MLP(width) for _ in range(depth)])
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def main():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = build(mesh["tp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    generator = torch.Generator().manual_seed(0)
    future = None
    for step in range(1, 301):
        x = torch.randn(4, 32, generator=generator)
        loss = nn.functional.mse_loss(model(x), x.roll(1, 1))  # culprit
        optimizer.zero_grad()
        loss.backward()  # culprit
        optimizer.step()
        if step % SAVE_EVERY == 0:
            if future is not None:
                future.result()
            state = {"model": get_model_state_dict(model), "step": step}
            future = dcp.async_save(state, checkpoint_id=f"ckpt/{step}")  # culprit
    future.result()
    if dist.get_rank() == 0:
        print("finished", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
