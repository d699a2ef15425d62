import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Checkpointer:
    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def save(self, model, optimizer, epoch):
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, os.path.join(self.folder, "last.pt"))  # culprit


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    keeper = Checkpointer("checkpoints")
    for epoch in range(3):
        for _ in range(5):
            model(torch.randn(8, 64)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        keeper.save(model, optimizer, epoch)
    print("saved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
