import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

from vocab import Vocabulary


class LanguageModel(nn.Module):
    def __init__(self, size, dim=16):
        super().__init__()
        self.embedding = nn.Embedding(size, dim)
        self.body = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.head = nn.Linear(dim, size)

    def forward(self, ids):
        return self.head(self.body(self.embedding(ids)))


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo")
    vocabulary = Vocabulary.load(f"cache/{local_rank}", "corpus.txt")
    torch.manual_seed(0)
    model = LanguageModel(len(vocabulary))
    fully_shard(model.body)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = vocabulary.encode_file("corpus.txt")
    generator = torch.Generator().manual_seed(local_rank)
    for step in range(10):
        start = torch.randint(0, len(ids) - 9, (4,), generator=generator)
        batch = torch.stack([ids[s : s + 9] for s in start])
        logits = model(batch[:, :-1])  # culprit
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {local_rank} step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
