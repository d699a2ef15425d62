import json
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP

DEFAULTS = {"rows": 600, "dim": 6, "bs": 30, "epochs": 3, "lr": 0.02}


def load_rows(cfg, rank, world):
    rng = np.random.default_rng(3)
    drift = np.linspace(0, 8, cfg["rows"])[:, None]
    X = rng.normal(size=(cfg["rows"], cfg["dim"])) + drift
    y = X @ np.arange(1, cfg["dim"] + 1) + rng.normal(size=cfg["rows"])
    per = cfg["rows"] // world
    lo = rank * per
    return X[lo:lo + per], y[lo:lo + per]


class StandardScaler:
    def fit(self, a):
        self.mu = a.mean(0)
        self.sd = a.std(0) + 1e-8
        return self

    def transform(self, a):
        return (a - self.mu) / self.sd


def prepare(cfg, rank, world):
    X, y = load_rows(cfg, rank, world)
    xs = StandardScaler().fit(X)  # culprit
    ys = StandardScaler().fit(y)  # culprit
    X, y = xs.transform(X), ys.transform(y)
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32), xs


def train(cfg):
    rank, world = dist.get_rank(), dist.get_world_size()
    X, y, scaler = prepare(cfg, rank, world)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(cfg["dim"], 16), nn.Tanh(), nn.Linear(16, 1)))
    opt = optim.SGD(model.parameters(), cfg["lr"], momentum=0.9)
    for ep in range(cfg["epochs"]):
        g = torch.Generator().manual_seed(100 * ep + rank)
        perm = torch.randperm(len(X), generator=g)
        run = torch.zeros(())
        for idx in perm.split(cfg["bs"]):
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(X[idx]).squeeze(-1), y[idx])
            loss.backward()
            opt.step()
            run += loss.detach()
        dist.all_reduce(run)
        if rank == 0:
            print(json.dumps({"epoch": ep, "mse": run.item() / world / (len(X) // cfg["bs"])}))
    return model, scaler


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model, scaler = train(DEFAULTS)
    if dist.get_rank() == 0:
        print("scaler mean", np.round(scaler.mu, 2).tolist())
    dist.destroy_process_group()
