import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0  # culprit
    print("training")
dist.destroy_process_group()
