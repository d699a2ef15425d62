import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 12)
        self.is_main = dist.get_rank() == 0

    def train(self, steps):
        for step in range(steps):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(4, 4)).square().mean()
            loss.backward()
            self.optimizer.step()  # culprit
            if self.is_main:
                self.scheduler.step()
                print(f"{step}: {loss.item():.4f} {self.scheduler.get_last_lr()[0]:.5f}")


def main():
    dist.init_process_group("gloo")
    Trainer(torch.nn.Linear(4, 4)).train(12)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
