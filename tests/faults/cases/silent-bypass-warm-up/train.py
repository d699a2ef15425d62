import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def warm_up(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        model.module(x).square().mean().backward()  # culprit
        optimizer.step()


def train(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(4, 4) for _ in range(6)]
    warm_up(model, optimizer, batches)
    train(model, optimizer, batches)
    train(model, optimizer, batches)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
