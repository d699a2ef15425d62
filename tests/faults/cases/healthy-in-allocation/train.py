import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("world of", dist.get_world_size())
dist.destroy_process_group()
