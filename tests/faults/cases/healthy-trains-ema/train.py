import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Ema:
    def __init__(self, model, decay=0.9):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for mine, other in zip(self.model.state_dict().values(), model.state_dict().values()):
            if mine.is_floating_point():
                mine.lerp_(other, 1 - self.decay)
            else:
                mine.copy_(other)


@torch.no_grad()
def evaluate(model):
    model.eval()
    generator = torch.Generator().manual_seed(0)
    return sum(model(torch.randn(4, 6, generator=generator)).mean().item() for _ in range(3))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2)))
    ema = Ema(model.module)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        model.train()
        for _ in range(4):
            loss = model(torch.randn(8, 6)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model.module)
        if rank == 0:
            print(evaluate(ema.model), evaluate(model.module))
        dist.barrier()
    if rank == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
