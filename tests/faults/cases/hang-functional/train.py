"""Sums over ranks by functional collectives, as compiled code and DTensor do."""

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol


def total(x, ranks):
    return funcol.wait_tensor(funcol.all_reduce(x, "sum", ranks))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    ranks = list(range(dist.get_world_size()))
    x = torch.ones(4)
    for step in range(6):
        if step == 4 and dist.get_rank() == 1:
            break
        x = total(x, ranks)
    dist.barrier()  # culprit
