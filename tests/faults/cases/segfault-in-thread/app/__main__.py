import threading
import time

import torch
import torch.distributed as dist

from .decode import decode


def main():
    dist.init_process_group("gloo")
    frames = []
    address = 8 if dist.get_rank() == 1 else 0
    thread = threading.Thread(target=decode, args=(frames, address))
    thread.start()
    for _ in range(20):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.1)
    thread.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
