import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

PATH = "state.pt"


def make():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def save(model, optimizer, step):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    if dist.get_rank() == 0:
        torch.save({"weights": weights, "moments": moments, "step": step}, PATH)
    dist.barrier()


def load(model, optimizer):
    saved = torch.load(PATH, weights_only=False)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=saved["weights"],
        optim_state_dict=saved["moments"],
        options=StateDictOptions(full_state_dict=True),
    )
    return saved["step"]


def train(until):
    model, optimizer = make()
    step = load(model, optimizer) if os.path.exists(PATH) else 0
    g = torch.Generator().manual_seed(10 * step + dist.get_rank())
    for step in range(step, until):
        x = torch.randn(8, 8, generator=g)
        (model(x) - x).abs().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    save(model, optimizer, until)


dist.init_process_group("gloo")
train(5)
train(12)
print("all steps made")
dist.destroy_process_group()
