import functools
import os

import torch
import torch.distributed as dist


def rank_zero_only(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if int(os.environ["RANK"]) == 0:
            return function(*args, **kwargs)
        return None

    return wrapped


@rank_zero_only
def report(metrics):
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, metrics)  # culprit
    print(gathered)


def main():
    dist.init_process_group("gloo")
    weights = torch.zeros(10)
    for step in range(6):
        dist.broadcast(weights, src=0)
        if step == 3:
            report({"step": step})
    dist.destroy_process_group()


main()
