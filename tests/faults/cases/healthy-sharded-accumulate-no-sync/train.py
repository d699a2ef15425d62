import contextlib

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

ACCUMULATION = 3

dist.init_process_group("gloo")
rank = dist.get_rank()


def main():
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Linear(5, 40), torch.nn.ELU(), torch.nn.Linear(40, 5))
    net = FullyShardedDataParallel(
        net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=torch.device("cpu"), use_orig_params=True
    )
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    xs = torch.randn(18, 4, 5, generator=torch.Generator().manual_seed(rank))
    for i, x in enumerate(xs, start=1):
        update = i % ACCUMULATION == 0
        with contextlib.nullcontext() if update else net.no_sync():
            loss = (net(x) - x.roll(1, dims=1)).pow(2).mean()
            (loss / ACCUMULATION).backward()
        if update:
            net.clip_grad_norm_(0.5)
            opt.step()
            opt.zero_grad()
    if rank == 0:
        print("end", float(loss))


main()
dist.destroy_process_group()
