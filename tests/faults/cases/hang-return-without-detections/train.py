import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from evaluator import BoxEvaluator


class TinyDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.box = nn.Linear(96, 4)
        self.obj = nn.Linear(96, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.box(h).sigmoid(), self.obj(h).squeeze(1)


def images(n, seed, empty=False):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 16, 16, generator=g) * 0.1
    boxes = torch.rand(n, 4, generator=g)
    present = torch.zeros(n) if empty else torch.ones(n)
    x += present[:, None, None, None] * 2
    return x, boxes, present


def train(model, opt, rank, iters):
    for it in range(iters):
        x, boxes, present = images(8, it * 2 + rank, empty=it % 2 == 1)
        pb, po = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(po, present) + ((pb - boxes).abs().mean(1) * present).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


@torch.no_grad()
def evaluate(model, rank):
    model.eval()
    ev = BoxEvaluator(thr=0.5)
    for k in range(3):
        x, boxes, present = images(8, 500 + k * 2 + rank, empty=rank == 1)
        pb, po = model.module(x)
        ev.update(pb, po.sigmoid(), boxes)
    res = ev.accumulate()
    model.train()
    return res


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(TinyDetector())
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    for epoch in range(2):
        train(model, opt, rank, 30)
        res = evaluate(model, rank)
        if rank == 0:
            print(epoch, res, flush=True)
        dist.barrier()
    dist.destroy_process_group()
