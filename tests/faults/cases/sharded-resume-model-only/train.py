"""Toy language model under FSDP2; a second call of `fit` plays the job after its requeue."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

CHECKPOINT = "last.pt"


def build():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 24))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def snapshot(model, optimizer, scheduler, step):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)
    moments = get_optimizer_state_dict(model, optimizer, options=options)
    if dist.get_rank() == 0:
        torch.save({"model": weights, "optim": moments, "sched": scheduler.state_dict(), "step": step}, CHECKPOINT)
    dist.barrier()


def restore(model, scheduler):
    blob = torch.load(CHECKPOINT, map_location="cpu", weights_only=False)  # culprit
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, blob["model"], options=options)  # culprit
    scheduler.load_state_dict(blob["sched"])
    return blob["step"]


def fit(until):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    step = 0
    if os.path.exists(CHECKPOINT):
        step = restore(model, scheduler)  # culprit
        if dist.get_rank() == 0:
            print(f"resuming from step {step}")
    stream = torch.Generator().manual_seed(100 + dist.get_rank() + 31 * step)
    while step < until:
        ids = torch.randint(0, 24, (8, 13), generator=stream)
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
    snapshot(model, optimizer, scheduler, step)
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    fit(6)
    dist.barrier()
    final = fit(14)
    if dist.get_rank() == 0:
        print(f"finished, loss {final:.3f}")
    dist.destroy_process_group()
