import argparse

import torch
import torch.distributed as dist
from tools import debugging
from torch.nn.parallel import DistributedDataParallel


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--debug", action="store_true")
    return parser.parse_args()


def main(options):
    if options.debug:
        debugging.turn_on()
    dist.init_process_group("gloo")
    head = DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    for step in range(options.steps):
        loss = head(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")
    del head
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse())
