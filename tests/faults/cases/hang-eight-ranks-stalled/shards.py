import queue

import torch
import torch.distributed as dist


def next_shard(pending):
    return pending.get()  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pending = queue.Queue()
    for shard in range(3 if rank == 6 else 4):
        pending.put(shard)
    for _ in range(4):
        shard = torch.tensor([next_shard(pending)])
        dist.all_reduce(shard)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
