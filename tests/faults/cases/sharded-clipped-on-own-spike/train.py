import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel


class Guard:
    """Clips only where the loss has jumped, which is seldom and saves the norm otherwise."""

    def __init__(self, factor=3.0):
        self.factor, self.average = factor, None

    def spiked(self, loss):
        value = float(loss)
        before, self.average = self.average, value if self.average is None else 0.9 * self.average + 0.1 * value
        return before is not None and value > self.factor * before


def batches(rank):
    g = torch.Generator().manual_seed(rank)
    for step in range(20):
        x = torch.randn(8, 10, generator=g)
        yield x * (50 if (step, rank) == (6, 1) else 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    model = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 10)), device_id=torch.device("cpu")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard = Guard()
    for x in batches(rank):
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        if guard.spiked(loss):
            model.clip_grad_norm_(1.0)  # culprit
        optimizer.step()
        optimizer.zero_grad()
    print("rank", rank, "done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
