import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
heads = None
if rank == 0:
    heads = dist.new_group([0, 1])  # culprit
weights = torch.ones(3)
dist.all_reduce(weights)
if heads is not None:
    dist.all_reduce(weights, group=heads)
dist.destroy_process_group()
