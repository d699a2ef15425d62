import gc

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(4):
        try:
            with Join([model], throw_on_early_termination=True):
                for _ in range(5 + 3 * rank):
                    x = torch.randn(8, 4)
                    optimizer.zero_grad()
                    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                    optimizer.step()
        except RuntimeError as error:
            assert "exhausted" in str(error) or "Detected at least one rank" in str(error)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    train(dist.get_rank())
    gc.collect()  # a model that is alive at exit aborts this torch now and then
    dist.barrier()
    if dist.get_rank() == 0:
        print("ended together")
    dist.destroy_process_group()


main()
