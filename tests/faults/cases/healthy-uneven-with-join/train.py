import gc

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Join([model]):
        for _ in range(3 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()


def main():
    dist.init_process_group("gloo")
    train()
    gc.collect()  # a model that is alive at exit aborts this torch now and then
    dist.barrier()
    if dist.get_rank() == 0:
        print("joined")
    dist.destroy_process_group()


main()
