import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--scratch", default="scratch/{host}/latest")
    parser.add_argument("--steps", type=int, default=10)
    return parser.parse_args()


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    fully_shard(model[0])
    fully_shard(model)
    return model


def train(model, steps, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        x = torch.randn(4, 8, generator=g)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def load_if_present(model, path):
    if not os.path.isdir(path):
        return False
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=path)  # culprit
    model.load_state_dict(state["model"])
    return True


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    first = build()
    train(first, 2, rank)
    dcp.save({"model": first.state_dict()}, checkpoint_id=args.scratch.format(host="node0"))
    model = build()
    if args.resume:
        host = "node0" if rank == 0 else f"node{rank}"
        loaded = load_if_present(model, args.scratch.format(host=host))
        print(f"[{rank}] resumed: {loaded}", flush=True)
    print(rank, train(model, args.steps, rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
