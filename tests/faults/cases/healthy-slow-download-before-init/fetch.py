import os
import time

import torch.distributed as dist


def prepare(rank):
    if rank == 0:
        time.sleep(8)  # unpacks the data before it joins
        open("ready", "w").close()


def main():
    prepare(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        print("all here", os.path.exists("ready"))
    dist.destroy_process_group()


main()
