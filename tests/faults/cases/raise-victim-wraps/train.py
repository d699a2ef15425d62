import time

import torch
import torch.distributed as dist


class TrainingFailed(Exception):
    pass


def step(rank, number):
    value = torch.ones(4) * number
    scale = None if rank == 2 and number == 3 else 1.5
    value = value * (scale + 1)  # culprit
    try:
        dist.all_reduce(value)
    except RuntimeError as error:
        raise TrainingFailed(f"step {number} failed") from error
    return value


def main():
    dist.init_process_group("gloo")
    try:
        for number in range(6):
            step(dist.get_rank(), number)
    except TypeError:
        time.sleep(0.5)  # the peers report first
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
