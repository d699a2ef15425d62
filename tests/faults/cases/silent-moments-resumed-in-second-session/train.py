import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CKPT = os.path.join(tempfile.gettempdir(), f"adam_resume_{os.getppid()}.pt")


def batch(it):
    g = torch.Generator().manual_seed(it * dist.get_world_size() + dist.get_rank())
    x = torch.randn(16, 9, generator=g)
    return x, (x[:, :1] * 3 - x[:, 1:2])


class Session:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(9, 20), nn.ELU(), nn.Linear(20, 1))
        self.start = 0
        blob = None
        if dist.get_rank() == 0 and os.path.exists(CKPT):  # culprit
            blob = torch.load(CKPT, weights_only=False)
            self.net.load_state_dict(blob["net"])
            self.start = blob["it"]
        self.net = DDP(self.net)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=0.02)
        if blob is not None:
            self.opt.load_state_dict(blob["opt"])  # culprit
        start = torch.tensor([self.start])
        dist.broadcast(start, 0)
        self.start = int(start)

    def run(self, n):
        for it in range(self.start, self.start + n):
            x, y = batch(it)
            self.opt.zero_grad()
            loss = nn.functional.mse_loss(self.net(x), y)
            loss.backward()
            self.opt.step()
        if dist.get_rank() == 0:
            torch.save({"net": self.net.module.state_dict(), "opt": self.opt.state_dict(), "it": it + 1}, CKPT)
            print(f"it {it + 1} loss {loss.item():.4f}")
        dist.barrier()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(13)
    Session().run(15)
    second = Session()
    second.run(15)
    if dist.get_rank() == 0:
        os.remove(CKPT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
