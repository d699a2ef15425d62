import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Accumulator:
    """Steps after so many batches, and at the end of an epoch."""

    def __init__(self, model, optimizer, count):
        self.model, self.optimizer, self.count, self.seen = model, optimizer, count, 0

    def take(self, x):
        self.seen += 1
        if self.seen == self.count:
            self.model(x).square().mean().backward()
            self.flush()
        else:
            with self.model.no_sync():
                self.model(x).square().mean().backward()

    def flush(self):
        if self.seen:
            self.optimizer.step()  # culprit
            self.optimizer.zero_grad()
            self.seen = 0


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 4))
    accumulator = Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    torch.manual_seed(dist.get_rank())
    for epoch in range(4):
        for _ in range(5):
            accumulator.take(torch.randn(2, 4))
        accumulator.flush()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
