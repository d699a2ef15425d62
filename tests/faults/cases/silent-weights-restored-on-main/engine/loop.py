import torch
import torch.distributed as dist
from torch.nn import functional as F

from .common import is_main


def loop(model, opt, start, stop):
    for it in range(start, stop):
        g = torch.Generator().manual_seed(it * dist.get_world_size() + dist.get_rank())
        x = torch.randn(16, 8, generator=g)
        y = x[:, :3].argmax(1)
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        if is_main() and it % 5 == 0:
            print("it", it, "loss", round(loss.item(), 4))
