import gc

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def train(rank):
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for epoch in range(3):
        with Join([model, optimizer]):
            for _ in range(6 + 5 * rank):
                x = torch.randn(8, 4)
                model.zero_grad()
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
    for each in model.parameters():
        rows = [torch.empty_like(each) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, each.detach())
        assert all(torch.equal(row, each) for row in rows)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    train(dist.get_rank())
    gc.collect()  # a model that is alive at exit aborts this torch now and then
    dist.barrier()
    if dist.get_rank() == 0:
        print("joined")
    dist.destroy_process_group()


main()
