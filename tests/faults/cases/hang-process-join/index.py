import multiprocessing
import time

import torch
import torch.distributed as dist


def build_index(path):
    while True:
        time.sleep(1)  # culprit


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        builder = multiprocessing.get_context("spawn").Process(target=build_index, args=("index",))
        builder.start()
        builder.join()  # culprit
    ready = torch.ones(1)
    dist.broadcast(ready, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
