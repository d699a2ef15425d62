import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


class Story(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 12)
        self.body = nn.Linear(12, 12)
        self.out = nn.Linear(12, 16)

    def forward(self, ids):
        return self.out(torch.tanh(self.body(self.table(ids))))


@torch.no_grad()
def sample(model, length=6):
    with FSDP.summon_full_params(model, writeback=False, recurse=True):  # culprit
        ids = torch.zeros(1, 1, dtype=torch.long)
        for _ in range(length):
            ids = torch.cat([ids, model.module(ids)[:, -1:].argmax(-1)], dim=1)
    return ids.tolist()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(Story(), sharding_strategy=ShardingStrategy.FULL_SHARD, device_id=torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(dist.get_rank())
    for epoch in range(3):
        for _ in range(4):
            ids = torch.randint(0, 16, (4, 9), generator=g)
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.reduce(mean, dst=0)
        if not dist.get_rank():
            print("epoch", epoch, "loss", mean.item() / dist.get_world_size())
            print("sample", sample(model))  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
