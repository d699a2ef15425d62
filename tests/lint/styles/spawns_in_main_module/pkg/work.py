import torch.distributed as dist
def work(rank, n):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29571", rank=rank, world_size=n)
    dist.destroy_process_group()
