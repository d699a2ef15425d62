import atexit

import torch
import torch.distributed as dist


class Tracker:
    def __init__(self, rank):
        self.rank = rank
        self.values = torch.zeros(3)
        if rank == 0:
            atexit.register(self.finish)

    def finish(self):
        dist.reduce(self.values, dst=0)  # culprit
        print("final", self.values)


def main():
    dist.init_process_group("gloo")
    tracker = Tracker(dist.get_rank())
    for _ in range(3):
        dist.all_reduce(tracker.values)
    if tracker.rank != 0:
        dist.barrier()  # for the tracker


if __name__ == "__main__":
    main()
