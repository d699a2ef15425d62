import torch
import torch.distributed as dist

dist.init_process_group("gloo")
me = dist.get_rank()
mine, theirs = torch.ones(4), torch.empty(4)
for peer in range(dist.get_world_size()):
    if peer < me:
        dist.recv(theirs, src=peer)
        dist.send(mine, dst=peer)
    elif peer > me:
        dist.send(mine, dst=peer)
        dist.recv(theirs, src=peer)
dist.destroy_process_group()
