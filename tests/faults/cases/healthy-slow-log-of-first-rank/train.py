import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class RunLogger:
    def __init__(self, model, every=5):
        self.model, self.every = model, every
        self.dir = tempfile.mkdtemp(prefix="runlog_")
        self.rows = []

    def __call__(self, step, loss):
        if step % self.every:
            return
        hist = {n: torch.histc(p.detach(), 5).tolist() for n, p in self.model.named_parameters()}
        gnorm = sum(p.grad.pow(2).sum().item() for p in self.model.parameters()) ** 0.5
        self.rows.append({"step": step, "loss": loss, "gnorm": gnorm})
        time.sleep(0.2)
        torch.save(self.model.state_dict(), os.path.join(self.dir, f"{step}.pt"))
        with open(os.path.join(self.dir, "log.json"), "w") as f:
            json.dump({"rows": self.rows, "hist": hist}, f)
        print(self.rows[-1])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    hook = RunLogger(model.module) if rank == 0 else None
    for step in range(20):
        g = torch.Generator().manual_seed(step * 2 + rank)
        x = torch.randn(10, 6, generator=g)
        loss = (model(x) - x.prod(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if hook is not None:
            hook(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
