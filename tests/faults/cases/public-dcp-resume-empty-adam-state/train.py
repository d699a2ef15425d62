import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from checkpoint import CheckpointManager

DIM, SAVE_AT, TOTAL = 16, 10, 16


def build(mesh):
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 5))
    return model, opt, sched


def batch(step, rank):
    gen = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(8, DIM, generator=gen)
    return x, x.cumsum(-1) / 4


def run(model, opt, sched, first, last, rank, tag):
    for step in range(first, last):
        x, y = batch(step, rank)
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        value = loss.detach().clone()
        dist.all_reduce(value)
        if rank == 0:
            print(f"{tag} step {step} loss {value.item() / dist.get_world_size():.6f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    holder = [tempfile.mkdtemp(prefix="dcp_") if rank == 0 else None]
    dist.broadcast_object_list(holder, src=0)
    root = holder[0]

    model, opt, sched = build(mesh)
    run(model, opt, sched, 0, SAVE_AT, rank, "first")
    CheckpointManager(root, model, opt, sched).save(SAVE_AT)
    del model, opt, sched

    model, opt, sched = build(mesh)
    start = CheckpointManager(root, model, opt, sched).load(SAVE_AT)
    run(model, opt, sched, start, TOTAL, rank, "resumed")

    dist.barrier()
    if rank == 0:
        shutil.rmtree(root)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
