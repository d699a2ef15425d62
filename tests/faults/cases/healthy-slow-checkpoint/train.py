import os
import time

import torch
import torch.distributed as dist


def save(state, path):
    """Write to a slow disk."""
    with open(path, "wb") as file:
        for _ in range(30):
            file.write(os.urandom(1 << 16))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.25)
    torch.save(state, path + ".state")


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        save({"step": 1}, "checkpoint")
    dist.barrier()
    state = [torch.load("checkpoint.state") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(state, src=0)
    if dist.get_rank() == 2:
        print("resumed", state[0])
    dist.destroy_process_group()


main()
