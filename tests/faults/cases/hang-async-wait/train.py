import torch
import torch.distributed as dist


class Overlap:
    def __init__(self):
        self.pending = []

    def start(self, tensor):
        self.pending.append(dist.all_reduce(tensor, async_op=True))  # culprit

    def finish(self):
        for work in self.pending:
            work.wait()  # culprit
        self.pending.clear()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    overlap = Overlap()
    for step in range(6):
        for layer in range(4 if (rank, step) == (1, 4) else 3):
            overlap.start(torch.ones(8))
        overlap.finish()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
