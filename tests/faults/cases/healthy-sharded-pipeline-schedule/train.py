import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

DIM, BATCH, MICRO = 12, 16, 4


class Decoder(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.embed = nn.Linear(6, DIM)
        self.layers = nn.ModuleDict({str(i): nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()) for i in range(layers)})
        self.out = nn.Linear(DIM, 2)

    def forward(self, x):
        h = self.embed(x) if self.embed is not None else x
        for layer in self.layers.values():
            h = h + layer(h)
        return self.out(h) if self.out is not None else h


def split(model, stage, stages):
    per = len(model.layers) // stages
    for name in list(model.layers):
        if int(name) // per != stage:
            del model.layers[name]
    if stage > 0:
        model.embed = None
    if stage < stages - 1:
        model.out = None
    return model


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(5)
    module = split(Decoder(), rank, world)
    example = torch.zeros(BATCH // MICRO, 6 if rank == 0 else DIM)
    stage = PipelineStage(module, rank, world, torch.device("cpu"), input_args=(example,))
    schedule = Schedule1F1B(stage, n_microbatches=MICRO, loss_fn=nn.MSELoss())
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(99)
    for step in range(10):
        x = torch.randn(BATCH, 6, generator=data)
        y = torch.stack([x.sum(1), x.prod(1)], dim=1)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            losses = []
            schedule.step(target=y, losses=losses)
        optimizer.step()
    if rank == world - 1:
        print(f"last step loss {torch.stack(losses).mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
