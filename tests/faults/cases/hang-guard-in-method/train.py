import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        self.model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    @property
    def is_master(self):
        return self.rank == 0

    def fit(self, epochs):
        for epoch in range(epochs):
            for _ in range(4):
                self.step()
            if self.is_master:
                self.save(epoch)

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 8)).mean().backward()
        self.optimizer.step()

    def save(self, epoch):
        torch.save(self.model.state_dict(), f"epoch-{epoch}.pt")
        dist.barrier()  # culprit


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer().fit(3)
    dist.destroy_process_group()
