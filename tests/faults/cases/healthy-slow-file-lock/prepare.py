import fcntl
import os
import time

import torch.distributed as dist


def prepare(path):
    """Who comes first builds it; the others wait for the lock, outside of torch."""
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            time.sleep(8)
            open(path, "w").close()


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() != 0:
        prepare("index")
    dist.barrier()
    if dist.get_rank() == 0:
        print("prepared", os.path.exists("index"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
