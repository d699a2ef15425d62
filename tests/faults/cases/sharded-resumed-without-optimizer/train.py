import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

FOLDER = "checkpoint"


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 40), nn.SiLU(), nn.Linear(40, 10))
    fully_shard(model[0])
    return fully_shard(model)


def save(model, step):
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=FOLDER)  # culprit
    if dist.get_rank() == 0:
        with open(f"{FOLDER}/meta.json", "w") as file:
            json.dump({"step": step}, file)


def load(model):
    if not os.path.exists(f"{FOLDER}/meta.json"):
        return 0
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=FOLDER)  # culprit
    set_model_state_dict(model, state["model"])  # culprit
    with open(f"{FOLDER}/meta.json") as file:
        step = json.load(file)["step"]
    if dist.get_rank() == 0:
        print("resumed from step", step)
    return step


def main(until):
    dist.init_process_group("gloo")
    model = build()
    start = load(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99))  # culprit
    for step in range(start, until):
        data = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(8, 10, generator=data)
        loss = nn.functional.mse_loss(model(x), x.sort(1).values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # culprit
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    save(model, until)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, default=100)
    main(parser.parse_args().until)
