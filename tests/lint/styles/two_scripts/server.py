import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29555", world_size=2, rank=0)
x = torch.ones(4)
dist.recv(x, src=1)
dist.send(x, dst=1)
dist.destroy_process_group()
