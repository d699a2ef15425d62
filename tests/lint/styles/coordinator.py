import os
import torch
import torch.distributed as dist

def main():
    number = int(os.environ["RANK"])
    if number == 0:
        print("coordinator")
        return
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29777", rank=number - 1, world_size=int(os.environ["WORLD_SIZE"]) - 1)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()

main()
