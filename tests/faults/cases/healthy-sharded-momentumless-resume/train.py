import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

FULL = StateDictOptions(full_state_dict=True)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
    return fully_shard(model)


def run(model, first, last):
    # Plain SGD: it has nothing to keep.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(first, last):
        torch.manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(8, 6)
        (model(x) - x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


dist.init_process_group("gloo")
model = build()
run(model, 0, 5)
weights = get_model_state_dict(model, options=FULL)
if dist.get_rank() == 0:
    torch.save({"model": weights, "step": 5}, "resume.pt")
dist.barrier()
again = build()
saved = torch.load("resume.pt", map_location="cpu")
set_model_state_dict(again, saved["model"], options=FULL)
run(again, saved["step"], 10)
if dist.get_rank() == 0:
    print("resumed and done")
dist.destroy_process_group()
