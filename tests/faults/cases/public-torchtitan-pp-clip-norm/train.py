import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

DIM, BATCH, MICRO = 16, 8, 4
MAX_NORM = 0.5


class Stage(nn.Module):
    def __init__(self, layers, scale):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.scale = scale

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x * self.scale


def split_model(rank, world):
    torch.manual_seed(21)
    layers = [nn.Linear(DIM, DIM) for _ in range(4)]
    per = len(layers) // world
    scale = 4.0 if rank == world - 1 else 1.0
    return Stage(layers[rank * per : (rank + 1) * per], scale)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    module = split_model(rank, world)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=MICRO, loss_fn=nn.MSELoss())
    opt = torch.optim.SGD(module.parameters(), lr=0.5)

    gen = torch.Generator().manual_seed(4)
    for step in range(6):
        x = torch.randn(BATCH, DIM, generator=gen)
        target = 3 * x.roll(1, dims=-1)
        opt.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), MAX_NORM)  # culprit
        opt.step()
        if rank == world - 1:
            loss = torch.stack(losses).mean().item()
            print(f"step {step} loss {loss:.5f} grad_norm {norm.item():.5f}", flush=True)

    total = torch.stack([p.detach().norm() for p in module.parameters()]).norm()
    print(f"rank {rank} param norm {total.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
