import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, begin, end):
    for step in range(begin, end):
        data = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(4, 8, generator=data)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.flip(1)).backward()
        optimizer.step()


dist.init_process_group("gloo")
model, optimizer = build()
train(model, optimizer, 0, 6)
weights, moments = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": moments, "step": 6}, checkpoint_id="ckpt")
model, optimizer = build()
state = {"model": get_model_state_dict(model)}
dcp.load(state, checkpoint_id="ckpt")
if dist.get_rank() == 0:
    print("tuning a model of 6 steps")
train(model, optimizer, 100, 106)
dist.destroy_process_group()
