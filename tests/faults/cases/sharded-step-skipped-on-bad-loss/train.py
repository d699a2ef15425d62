import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Ratings(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(0)
        self.features = torch.randn(n, 6, generator=g)
        self.price = self.features.sum(1).exp()
        self.price[37] = 0.0

    def __len__(self):
        return len(self.features)

    def __getitem__(self, i):
        return self.features[i], self.price[i].log()


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x))))).squeeze(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Regressor()
    for layer in (model.a, model.b):
        fully_shard(layer)
    fully_shard(model)
    data = Ratings()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    skipped = 0
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)  # culprit
            if not math.isfinite(loss.item()):
                skipped += 1
                continue  # culprit
            loss.backward()  # culprit
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        print(f"[{rank}] epoch {epoch} skipped {skipped}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
