import fcntl
import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as sharded
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def save_whole(state, path):
    own = f"{path}.{os.getpid()}"
    torch.save(state, own)
    os.replace(own, path)


def save_in_turns(state, path, rank, world):
    for turn in range(world):
        if turn == rank:
            torch.save(state, path)
        dist.barrier()


def save_locked(state, path):
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.save(state, path)
        fcntl.flock(lock, fcntl.LOCK_UN)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        shutil.rmtree("out", ignore_errors=True)
        os.makedirs("out")
    dist.barrier()
    os.makedirs("out/logs", exist_ok=True)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for _ in range(4):
            model(torch.randn(8, 64)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        state = model.module.state_dict()
        if rank == 0:
            torch.save(state, "out/best.pt")
        save_whole(state, "out/whole.pt")
        save_locked(state, "out/locked.pt")
        save_in_turns(state, "out/turns.pt", rank, world)
        torch.save({"rng": torch.get_rng_state()}, f"out/rng-{rank}.pt")
        sharded.save({"model": state}, checkpoint_id=f"out/sharded-{epoch}")
        with open("out/logs/train.log", "a") as log:
            log.write(f"{rank} {epoch}\n")
        open("out/logs/epoch.done", "w").close()
        dist.barrier()
        model.module.load_state_dict(torch.load("out/best.pt", map_location="cpu"))
    print("all is well", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
