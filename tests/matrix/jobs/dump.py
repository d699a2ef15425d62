"""Rank 1 issues a broadcast where the others reduce; each writes its Flight Recorder in every form that torch has."""

import os
import sys
import time
from pathlib import Path

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist


def main():
    out = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    dist.barrier()
    if rank == 1:
        work = dist.broadcast(torch.ones(4), src=0, async_op=True)
    else:
        work = dist.all_reduce(torch.ones(4), async_op=True)
    time.sleep(0.3)
    for form, name in (("pickle", "_dump_fr_trace"), ("json", "_dump_fr_trace_json")):
        if hasattr(c10d, name):
            folder = out / form
            folder.mkdir(exist_ok=True)
            text = getattr(c10d, name)()
            (folder / f"rank_{rank}").write_bytes(text if isinstance(text, bytes) else text.encode())
    (out / f"done-{rank}").touch()
    while not all((out / f"done-{each}").exists() for each in range(3)):
        time.sleep(0.05)
    del work  # kept up to here: nobody waits for it
    os._exit(0)


main()
