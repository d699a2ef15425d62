import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset


class BalancedSampler(Sampler):
    def __init__(self, labels, per_rank, seed=0):
        freq = torch.bincount(labels).double()
        self.w = 1.0 / freq[labels]
        self.per_rank, self.seed, self.calls = per_rank, seed, 0

    def __len__(self):
        return self.per_rank

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.calls)
        self.calls += 1
        world, rank = dist.get_world_size(), dist.get_rank()
        draw = torch.multinomial(self.w, self.per_rank * world, replacement=True, generator=g)
        return iter(draw.view(world, self.per_rank)[rank].tolist())


def imbalanced(n=400):
    g = torch.Generator().manual_seed(9)
    y = (torch.rand(n, generator=g) < 0.1).long()
    return torch.randn(n, 6, generator=g) + y[:, None], y


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x, y = imbalanced()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, sampler=BalancedSampler(y, 96))
    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(4):
        hit = torch.zeros(2)
        for xb, yb in loader:
            out = model(xb)
            loss = nn.functional.cross_entropy(out, yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            hit += torch.tensor([(out.argmax(1) == yb).sum().item(), len(yb)], dtype=torch.float)
        dist.all_reduce(hit)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} train acc {(hit[0] / hit[1]).item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
