import torch.distributed as dist

def barrier():
    return dist.barrier() if dist.is_initialized() else None

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("prepares")
    barrier()
else:
    dist.barrier()
dist.destroy_process_group()
