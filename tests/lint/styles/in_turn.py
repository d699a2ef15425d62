import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
for _ in range(rank):
    dist.barrier()
print("my turn", rank)
for _ in range(world_size - rank):
    dist.barrier()
dist.destroy_process_group()
