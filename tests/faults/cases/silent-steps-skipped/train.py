import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class SkipOutliers:
    def __init__(self, optimizer, factor=1.0):
        self.optimizer, self.factor, self.mean = optimizer, factor, None

    def __call__(self, loss):
        value = loss.item()
        self.mean = value if self.mean is None else 0.9 * self.mean + 0.1 * value
        loss.backward()
        if value <= self.factor * self.mean:
            self.optimizer.step()  # culprit
        self.optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    update = SkipOutliers(torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(30):
        x = torch.randn(4, 4)
        update((model(x) - x.sum(1, keepdim=True)).square().mean())
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
