import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from accumulate import no_sync


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.conv(x))).mean(-1))


def main(accumulate=4, updates=8):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    fully_shard(model.conv)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(rank)
    for update in range(updates):
        for micro in range(accumulate):
            x = torch.randn(4, 2, 12, generator=data)
            y = x.abs().amax((1, 2)).unsqueeze(1)
            with no_sync(model) if micro < accumulate - 1 else contextlib.nullcontext():
                loss = nn.functional.l1_loss(model(x), y) / accumulate
                loss.backward()
        optimizer.step()  # culprit
        optimizer.zero_grad()
        if rank == 0:
            print(f"update {update} loss {loss.item() * accumulate:.3f}")
    if rank == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
