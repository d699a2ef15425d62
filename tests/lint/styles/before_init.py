import os
import torch.distributed as dist

def synchronize():
    if dist.is_initialized():
        dist.barrier()

def prepare():
    open("prepared", "w").close()
    synchronize()

if int(os.environ["RANK"]) == 0:
    prepare()
dist.init_process_group("gloo")
synchronize()
dist.destroy_process_group()
