import gc
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Join([model]):
        for _ in range(2 + 2 * rank):
            time.sleep(2.5 if rank == 1 else 0.1)
            optimizer.zero_grad()
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()


def main():
    dist.init_process_group("gloo")
    train(dist.get_rank())
    gc.collect()
    dist.barrier()
    if dist.get_rank() == 0:
        print("joined")
    dist.destroy_process_group()


main()
