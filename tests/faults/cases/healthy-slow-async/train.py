import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensors = [torch.ones(1024) for _ in range(4)]
    for _ in range(2):
        pending = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        time.sleep(5 if rank == 0 else 0.1)  # overlaps with something long
        if rank == 1:
            time.sleep(1)
        for work in reversed(pending):
            work.wait()
        dist.barrier()
    late = dist.broadcast(tensors[0], src=1, async_op=True) if rank != 2 else None
    if rank == 2:
        time.sleep(6)
        late = dist.broadcast(tensors[0], src=1, async_op=True)
    late.wait()
    if rank == 0:
        print("overlapped")
    dist.destroy_process_group()


main()
