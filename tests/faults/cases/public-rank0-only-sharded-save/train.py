import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

DIM, SAVE_EVERY = 16, 5


class Engine:
    def __init__(self, mesh):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))
        for i in (0, 2):
            fully_shard(self.model[i], mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def train_batch(self, x):
        loss = (self.model(x) - x.sin()).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def save_checkpoint(self, path):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        dist.barrier()
        model_sd, optim_sd = get_state_dict(self.model, self.opt, options=options)
        torch.save({"model": model_sd, "optim": optim_sd}, path)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    engine = Engine(init_device_mesh("cpu", (world,)))
    path = os.path.join(tempfile.gettempdir(), f"engine_{os.getpid()}.pt")

    gen = torch.Generator().manual_seed(rank)
    for step in range(1, 21):
        loss = engine.train_batch(torch.randn(8, DIM, generator=gen))
        print(f"rank {rank} step {step} loss {loss:.4f}", flush=True)
        if step % SAVE_EVERY == 0 and rank == 0:  # culprit
            engine.save_checkpoint(path)  # culprit
            print(f"saved step {step}", flush=True)

    dist.barrier()
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
