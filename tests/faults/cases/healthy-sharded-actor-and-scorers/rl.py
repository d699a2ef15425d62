"""Policy gradients: ranks 0-1 hold the actor as FSDP2 shards, ranks 2-3 only score samples for their partner."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

ITERATIONS, BATCH, CHOICES = 8, 16, 5


class Actor:
    def __init__(self, mesh):
        self.partner = dist.get_rank() + 2
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, CHOICES))
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.generator = torch.Generator().manual_seed(dist.get_rank())

    def iterate(self):
        states = torch.randn(BATCH, 4, generator=self.generator)
        logits = self.model(states)
        actions = torch.multinomial(logits.detach().softmax(-1), 1, generator=self.generator)
        dist.send(torch.cat([states, actions.float()], dim=1), dst=self.partner)
        rewards = torch.empty(BATCH)
        dist.recv(rewards, src=self.partner)
        advantage = rewards - rewards.mean()
        loss = -(logits.log_softmax(-1).gather(1, actions).squeeze(1) * advantage).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Scorer:
    def __init__(self):
        self.partner = dist.get_rank() - 2
        self.mean = 0.0

    def iterate(self):
        sample = torch.empty(BATCH, 5)
        dist.recv(sample, src=self.partner)
        states, actions = sample[:, :4], sample[:, 4]
        rewards = (states.argmax(1) == actions).float()
        self.mean = rewards.mean().item()
        dist.send(rewards, dst=self.partner)


def main():
    dist.init_process_group("gloo")
    actors = DeviceMesh("cpu", [0, 1])
    scorers = dist.new_group([2, 3])
    worker = Actor(actors) if dist.get_rank() < 2 else Scorer()
    for _ in range(ITERATIONS):
        worker.iterate()
    if isinstance(worker, Scorer):
        mean = torch.tensor(worker.mean)
        dist.all_reduce(mean, group=scorers)
        if dist.get_rank() == 2:
            print(f"reward {mean.item() / 2:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
