"""Each rank stops when its own share of the budget is used up."""

import os

import torch
import torch.distributed as dist


class Budget:
    def __init__(self, steps):
        self.left = steps

    def spend(self):
        self.left -= 1
        if self.left < 0:
            os._exit(0)  # culprit


def main():
    dist.init_process_group("gloo")
    budget = Budget(steps=40 if dist.get_rank() == 1 else 400)
    total = torch.zeros(8)
    for _ in range(60):
        budget.spend()
        total += 1
        dist.all_reduce(total)
    dist.destroy_process_group()


main()
