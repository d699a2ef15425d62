import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Lookahead:
    def __init__(self, parameters, inner, k=5, alpha=0.5):
        self.parameters = list(parameters)
        self.slow = [p.detach().clone() for p in self.parameters]
        self.inner, self.k, self.alpha, self.count = inner, k, alpha, 0

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.inner.step()  # culprit
        self.count += 1
        if self.count % self.k == 0:
            with torch.no_grad():
                for slow, p in zip(self.slow, self.parameters):
                    slow.lerp_(p, self.alpha)
                    p.copy_(slow)


def main():
    dist.init_process_group("gloo")
    net = torch.nn.Linear(6, 2)
    optimizer = Lookahead(net.parameters(), torch.optim.SGD(net.parameters(), lr=0.1))
    model = DistributedDataParallel(net)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
