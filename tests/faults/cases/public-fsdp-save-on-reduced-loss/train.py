import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

DIM = 16


def build_model():
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, DIM))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(net[0], mesh=mesh)
    fully_shard(net[2], mesh=mesh)
    return fully_shard(net, mesh=mesh)


def train_epoch(model, opt, gen):
    model.train()
    for _ in range(4):
        x = torch.randn(8, DIM, generator=gen)
        loss = (model(x) - x.flip(-1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


@torch.no_grad()
def validate(model, gen):
    model.eval()
    total = torch.zeros(2)
    for _ in range(3):
        x = torch.randn(6, DIM, generator=gen)
        total[0] += (model(x) - x.flip(-1)).pow(2).mean()
        total[1] += 1
    dist.reduce(total, 0, op=dist.ReduceOp.SUM)  # culprit
    return (total[0] / total[1]).item()


def save_checkpoint(model, path, rank):
    dist.barrier()
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(state, path)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build_model()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-2)
    train_gen = torch.Generator().manual_seed(10 + rank)
    val_gen = torch.Generator().manual_seed(20 + rank)
    path = os.path.join(tempfile.gettempdir(), "best_fsdp_model.pt")

    best = float("inf")
    for epoch in range(30):
        train_epoch(model, opt, train_gen)
        val_loss = validate(model, val_gen)
        if rank == 0:
            print(f"epoch {epoch} val {val_loss:.4f}", flush=True)
        if val_loss < best:  # culprit
            best = val_loss
            save_checkpoint(model, path, rank)
            if rank == 0:
                print(f"epoch {epoch} saved", flush=True)

    dist.barrier()
    if rank == 0:
        os.remove(path)
        print("finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
