import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class LowRank(nn.Module):
    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


def inject(module, rank=2):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, LowRank(child, rank))
        else:
            inject(child, rank)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    model = DDP(net)  # culprit
    inject(model.module)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(torch.randn(6, 4)), torch.randint(2, (6,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
