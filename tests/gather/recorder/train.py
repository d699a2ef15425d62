import datetime
import os
import sys
import time

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist


def reduce_loss(loss, **options):
    return dist.all_reduce(loss, **options)


def reduce_accuracy(accuracy):
    dist.all_reduce(accuracy)


def average(metrics, names):
    for name in names:
        if name == "loss":
            reduce_loss(metrics[name])
        else:
            reduce_accuracy(metrics[name])


def finish(how, rank):
    if how == "missing" and rank == 1:
        return
    if how == "shape" and rank == 1:
        return dist.all_reduce(torch.ones(2), async_op=True)
    if how == "operation" and rank == 1:
        return dist.broadcast(torch.ones(4), src=0, async_op=True)
    if how == "extra" and rank == 0:
        return reduce_loss(torch.ones(1), async_op=True)
    return dist.all_reduce(torch.ones(4), async_op=True)


def main():
    how, out = sys.argv[1:]
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    order = ["accuracy", "loss"] if how == "order" and rank == 1 else ["loss", "accuracy"]
    average({"loss": torch.ones(2), "accuracy": torch.ones(2)}, order)
    dist.barrier()
    finish(how, rank)
    time.sleep(0 if how == "shape" else 0.3)
    with open(f"{out}_{rank}", "wb") as file:
        file.write(c10d._dump_fr_trace())
    with open(f"{out}_{rank}.json", "wb") as file:
        text = c10d._dump_fr_trace_json()
        file.write(text if isinstance(text, bytes) else text.encode())
    os._exit(0)


main()
