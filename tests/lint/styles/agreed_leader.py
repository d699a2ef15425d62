import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
src = dist.get_rank() if os.path.exists("/etc") else dist.get_world_size()
lowest = torch.tensor(src)
dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
src = int(lowest)
dist.broadcast(torch.ones(10), src=src)
dist.destroy_process_group()
