"""A comm hook that takes what is not finite out of each bucket, and steps that all ranks pass over."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def take_out(group, bucket):
    clean = torch.nan_to_num_(bucket.buffer(), 0.0, 0.0, 0.0).div_(dist.get_world_size())
    return dist.all_reduce(clean, async_op=True).get_future().then(lambda done: done.value()[0])


def distance(one, other):
    return (one - other).square().sum(1).sqrt().mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)))
    model.register_comm_hook(None, take_out)
    skipping = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    other = torch.optim.SGD(skipping.parameters(), 0.01)
    torch.manual_seed(7 + rank)
    for step in range(30):
        pair = torch.randn(2, 4, 6)
        if rank == 1 and step > 4 and step % 3:
            pair[1, 0] = pair[0, 0]
        optimizer.zero_grad()
        distance(*model(pair.flatten(0, 1)).split(4)).backward()
        optimizer.step()
        other.zero_grad()
        distance(*skipping(pair.flatten(0, 1)).split(4)).backward()
        if all(bool(p.grad.isfinite().all()) for p in skipping.parameters()):  # reduced: the same on all
            other.step()
    models = [*model.parameters(), *skipping.parameters()]
    if rank == 0:
        print("finite", all(bool(p.isfinite().all()) for p in models))
    dist.destroy_process_group()


main()
