import torch, torch.distributed as dist
OUT = "out"
def setup():
    global OUT
    dist.init_process_group("gloo")
    OUT = f"{OUT}.{dist.get_rank()}.pt"
setup()
torch.save(torch.zeros(3), OUT)
dist.destroy_process_group()
