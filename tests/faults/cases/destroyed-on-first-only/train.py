import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(2)
dist.all_reduce(x)
dist.barrier()
if dist.get_rank() == 0:
    print("done", x.sum().item())
    dist.destroy_process_group()  # culprit
