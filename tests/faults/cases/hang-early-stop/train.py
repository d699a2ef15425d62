import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def __call__(self, loss):
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(self.best, loss)
        return self.bad >= self.patience


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(4, 1))
    stopper = EarlyStopping(3)
    for epoch in range(30):
        model(torch.ones(2, 4)).sum().backward()
        validation_loss = 1.0 + epoch if rank == 2 else 1.0 / (1 + epoch)
        if stopper(validation_loss):  # culprit
            break
    last = torch.tensor([epoch])
    dist.broadcast(last, src=0)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
