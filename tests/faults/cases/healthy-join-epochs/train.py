import gc

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(rank):
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(6):
        batches = [torch.randn(8, 4) for _ in range(5 + 3 * rank)]
        with Join([model]):
            for x in batches:
                optimizer.zero_grad()
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
    return next(model.parameters()).detach().clone()


def main():
    dist.init_process_group("gloo")
    weights = train(dist.get_rank())
    gathered = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weights)
    assert all(torch.equal(each, weights) for each in gathered)
    gc.collect()  # a model that is alive at exit aborts this torch now and then
    dist.barrier()
    if dist.get_rank() == 0:
        print("joined")
    dist.destroy_process_group()


main()
