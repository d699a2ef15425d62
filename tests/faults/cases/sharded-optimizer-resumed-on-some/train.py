import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")


class Run:
    """One stage of a curriculum, with its own sharded model and optimizer."""

    def __init__(self, folder, lr):
        self.folder, self.rank = folder, dist.get_rank()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
        fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)

    def _path(self, what):
        return os.path.join(self.folder, f"{what}_rank{self.rank}.pt")

    def save(self):
        os.makedirs(self.folder, exist_ok=True)
        shards = {n: p.to_local().detach() for n, p in self.model.named_parameters()}
        moments = [
            {k: v.to_local() if hasattr(v, "to_local") else v for k, v in self.optimizer.state[p].items()}
            for p in self.model.parameters()
        ]
        torch.save(shards, self._path("model"))
        torch.save(moments, self._path("optim"))

    @torch.no_grad()
    def load(self):
        shards = torch.load(self._path("model"), weights_only=True)
        for name, parameter in self.model.named_parameters():
            parameter.to_local().copy_(shards[name])
        if not os.path.exists(self._path("optim")):
            logging.warning("no optimizer state for rank %d", self.rank)  # culprit
            return
        moments = torch.load(self._path("optim"), weights_only=True)
        for parameter, saved in zip(self.model.parameters(), moments):
            like = torch.zeros_like(parameter)
            state = {"step": saved["step"]}
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = like.clone()
                state[key].to_local().copy_(saved[key])
            self.optimizer.state[parameter] = state

    def train(self, steps, scale):
        data = torch.Generator().manual_seed(self.rank)
        for _ in range(steps):
            x = scale * torch.randn(8, 8, generator=data)
            loss = nn.functional.mse_loss(self.model(x), x.tanh())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()  # culprit
        return loss.item()


def main():
    dist.init_process_group("gloo")
    first = Run("stage1", lr=1e-2)
    first.train(12, scale=1.0)
    first.save()
    if dist.get_rank() == 1:
        os.remove("stage1/optim_rank1.pt")
    dist.barrier()
    second = Run("stage1", lr=5e-3)
    second.load()  # culprit
    loss = second.train(12, scale=2.0)
    if dist.get_rank() == 0:
        print(f"stage two finished, loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
