import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Classifier(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.first, self.second = Attention(dim), Attention(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.second(self.first(x)).mean(1))


def run(args):
    torch.manual_seed(0)
    model = FSDP(
        Classifier(12, 3), auto_wrap_policy=ModuleWrapPolicy({Attention}), device_id=torch.device("cpu")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    x = torch.randn(96, 5, 12)
    y = (4 * x.mean(1))[:, :3].argmax(1)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = 5 * nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            clip_grad_norm_(model.parameters(), args.clip)  # culprit
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"Epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=3)
    dist.init_process_group("gloo")
    run(parser.parse_args())
    if dist.get_rank() == 0:
        print("Training finished")
    dist.destroy_process_group()
