import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from network import Network


def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(3, 8)).square().mean()  # culprit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    train(DDP(Network()), 3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
