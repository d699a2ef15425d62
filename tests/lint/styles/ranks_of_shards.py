import types
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
shards = [types.SimpleNamespace(rank=r, tensor=torch.ones(2)) for r in range(dist.get_world_size())]
for shard in shards:
    if shard.rank != 0:  # those of rank 0 are everywhere
        dist.broadcast(shard.tensor, src=shard.rank)
dist.destroy_process_group()
