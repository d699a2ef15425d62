"""Tabular regression with hybrid sharding: shard inside a node, replicate across nodes."""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

config = {
    "nodes": 2,
    "features": 20,
    "width": 64,
    "depth": 3,
    "rows": 2048,
    "batch_size": 16,
    "epochs": 3,
    "lr": 2e-3,
    "warmup": 10,
    "seed": 21,
}


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lin = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.lin(self.norm(x)))


class Regressor(nn.Module):
    def __init__(self, features, width, depth):
        super().__init__()
        self.proj = nn.Linear(features, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(depth)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.proj(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def make_table(cfg):
    g = torch.Generator().manual_seed(cfg["seed"])
    x = torch.randn(cfg["rows"], cfg["features"], generator=g)
    w = torch.randn(cfg["features"], generator=g)
    y = torch.sin(x @ w) + 0.5 * x[:, 0] * x[:, 1] + 0.1 * torch.randn(cfg["rows"], generator=g)
    return TensorDataset(x, y)


def make_mesh(cfg):
    world = dist.get_world_size()
    return init_device_mesh("cpu", (cfg["nodes"], world // cfg["nodes"]), mesh_dim_names=("replicate", "shard"))


def shard_model(model, mesh):
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    shard_mesh = mesh["shard"]  # culprit
    for layer in model.layers:
        fully_shard(layer, mesh=shard_mesh, mp_policy=policy)  # culprit
    fully_shard(model, mesh=shard_mesh, mp_policy=policy, reshard_after_forward=False)  # culprit
    return model


def lr_factor(cfg, total):
    def fn(step):
        if step < cfg["warmup"]:
            return (step + 1) / cfg["warmup"]
        t = (step - cfg["warmup"]) / max(1, total - cfg["warmup"])
        return 0.5 * (1 + math.cos(math.pi * t))
    return fn


def main(cfg):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(cfg["seed"])

    mesh = make_mesh(cfg)
    model = shard_model(Regressor(cfg["features"], cfg["width"], cfg["depth"]), mesh)
    data = make_table(cfg)
    sampler = DistributedSampler(data, seed=cfg["seed"])
    loader = DataLoader(data, batch_size=cfg["batch_size"], sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_factor(cfg, cfg["epochs"] * len(loader)))

    step = 0
    for epoch in range(cfg["epochs"]):
        sampler.set_epoch(epoch)
        running = torch.zeros(())
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            sched.step()
            opt.zero_grad()
            running += loss.detach()
            step += 1
        dist.all_reduce(running)
        if rank == 0:
            print(f"epoch {epoch} step {step} mse {running.item() / len(loader) / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(config)
