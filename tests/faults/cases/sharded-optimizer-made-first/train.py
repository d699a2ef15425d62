import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Tagger(nn.Module):
    def __init__(self, width=12, layers=3, tags=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.out = nn.Linear(width, tags)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)


class Run:
    def __init__(self, lr=0.05):
        self.model = Tagger()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)  # culprit
        self.shard()
        self.generator = torch.Generator().manual_seed(dist.get_rank())

    def shard(self):
        for layer in self.model.layers:
            fully_shard(layer)
        fully_shard(self.model)

    def step(self):
        x = torch.randn(16, 12, generator=self.generator)
        loss = nn.functional.cross_entropy(self.model(x), x[:, :5].argmax(1))
        self.model.zero_grad()
        loss.backward()
        self.optimizer.step()  # culprit
        return loss.detach()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    run = Run()
    for step in range(12):
        loss = run.step()
        dist.all_reduce(loss)
        if dist.get_rank() == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
