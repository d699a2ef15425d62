import torch
import torch.distributed as dist

def nearest(x, bank):
    dist = torch.cdist(x, bank)
    return dist.gather(1, dist.argmin(1, keepdim=True))

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print(nearest(torch.ones(2, 3), torch.zeros(4, 3)))
dist.barrier()
dist.destroy_process_group()
