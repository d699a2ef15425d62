import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for epoch in range(3):
    stop = dist.get_rank() == 0 and epoch == 1
    flag = torch.tensor(int(stop))
    dist.broadcast(flag, src=0)
    stop = bool(flag)
    if stop:
        break
    dist.barrier()
dist.destroy_process_group()
