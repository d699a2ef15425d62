import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

ACCUMULATE = 4


def shard(model):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)


class ConvNet(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.fc = nn.Linear(channels, 5)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.fc(x.mean((2, 3)))


def batches(count):
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(count):
        x = torch.randn(2, 3, 8, 8, generator=generator)
        yield x, x.flatten(1)[:, :5].argmax(1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = ConvNet()
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i, (x, y) in enumerate(batches(48)):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss / ACCUMULATE).backward()  # culprit
        if (i + 1) % ACCUMULATE == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()  # culprit
            optimizer.zero_grad(set_to_none=True)
    if dist.get_rank() == 0:
        print("trained")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
