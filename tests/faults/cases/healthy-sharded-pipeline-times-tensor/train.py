import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from parallel_dims import ParallelDims


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.up = nn.Linear(dim, 3 * dim)
        self.down = nn.Linear(3 * dim, dim)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def build_stage(index, dim, mesh):
    torch.manual_seed(index)
    blocks = [Block(dim), Block(dim)]
    for block in blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return nn.Sequential(*blocks)


def main():
    dims = ParallelDims(dp=1, pp=2, tp=2, world_size=int(os.environ["WORLD_SIZE"]))
    mesh = dims.build_mesh("cpu")
    pp = mesh["pp"]
    index, stages = pp.get_local_rank(), pp.size()
    dim, batch, micro = 8, 12, 3
    module = build_stage(index, dim, mesh["tp"])
    stage = PipelineStage(
        module, index, stages, torch.device("cpu"),
        input_args=(torch.zeros(batch // micro, dim),),
        group=pp.get_group(),
    )  # fmt: skip
    schedule = ScheduleGPipe(stage, n_microbatches=micro, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, foreach=False)
    data = torch.Generator().manual_seed(0)
    for step in range(6):
        x = torch.randn(batch, dim, generator=data)
        optimizer.zero_grad()
        if index == 0:
            schedule.step(x)
        else:
            losses = []
            schedule.step(target=x.flip(1), losses=losses)
            if mesh["tp"].get_local_rank() == 0:
                print(f"step {step} loss {sum(losses).item() / micro:.4f}")
        optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
