import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class EncoderLayer(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(x)))


class Encoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        widths = [16 * (i + 1) for i in range(args.layers)]
        self.layers = nn.ModuleList(EncoderLayer(args.dim, hidden) for hidden in widths)
        self.layerdrop = args.layerdrop
        self.out = nn.Linear(args.dim, 2)

    def forward(self, x):
        for layer in self.layers:
            if not self.training or random.random() > self.layerdrop:
                x = layer(x)  # culprit
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=12)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--layerdrop", type=float, default=0.2)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    set_seed(args.seed)
    model = Encoder(args)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    set_seed(args.seed + dist.get_rank())
    for update in range(args.updates):
        x = torch.randn(8, args.dim)
        loss = nn.functional.mse_loss(model(x), x[:, :2])
        optimizer.zero_grad()
        loss.backward()  # culprit
        optimizer.step()
    print("done", update)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
