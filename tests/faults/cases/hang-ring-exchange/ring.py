"""Blocks of keys go round the ranks, as in ring attention."""

import torch
import torch.distributed as dist


def rotate(block, last):
    me, size = dist.get_rank(), dist.get_world_size()
    incoming = torch.empty_like(block)
    ops = [dist.P2POp(dist.isend, block, (me + 1) % size)]
    if not (last and me == 2):
        ops.append(dist.P2POp(dist.irecv, incoming, (me - 1) % size))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return incoming


def main():
    dist.init_process_group("gloo")
    block = torch.full((200_000,), float(dist.get_rank()))
    for turn in range(5):
        block = rotate(block, last=turn == 4)
    dist.barrier()  # culprit


main()
