import torch
import torch.distributed as dist
from torch import nn


class OuterOptimizer:
    def __init__(self, model, period):
        self.model, self.period = model, period
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.momentum = [torch.zeros_like(p) for p in self.anchor]

    def maybe_step(self, step):
        if step == 0 or step % self.period:  # culprit
            return False
        for p, anchor, m in zip(self.model.parameters(), self.anchor, self.momentum):
            delta = anchor - p.detach()
            dist.all_reduce(delta)  # culprit
            m.mul_(0.9).add_(delta / dist.get_world_size())
            anchor.sub_(0.7 * m)
            p.data.copy_(anchor)
        return True


def batches(epoch, rank):
    g = torch.Generator().manual_seed(epoch * 100 + rank)
    for step in range(15):
        x = torch.randn(16, 6, generator=g)
        yield step, x, x.sum(1, keepdim=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = OuterOptimizer(model, period=20)  # culprit
    for epoch in range(3):
        for step, x, y in batches(epoch, dist.get_rank()):
            loss = nn.functional.mse_loss(model(x), y)
            inner.zero_grad()
            loss.backward()
            inner.step()  # culprit
            outer.maybe_step(step)  # culprit
    print("worker", dist.get_rank(), "loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
