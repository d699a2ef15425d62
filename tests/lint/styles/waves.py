import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank >= 1:
    dist.barrier()
print("loads", rank)
if rank < 1:
    dist.barrier()
dist.destroy_process_group()
