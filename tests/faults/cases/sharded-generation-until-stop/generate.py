"""Trains a character model under FSDP and samples from it after each epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen jugs. "
CHARS = sorted(set(TEXT))
STOP = CHARS.index(".")


class CharModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), dim)
        self.hidden = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, len(CHARS))

    def forward(self, ids):
        return self.out(torch.relu(self.hidden(self.embed(ids))))  # culprit


def batches(rank, count=20):
    ids = torch.tensor([CHARS.index(c) for c in TEXT])
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        start = torch.randint(0, len(ids) - 17, (8,), generator=generator)
        yield torch.stack([ids[s : s + 17] for s in start])


@torch.no_grad()
def sample(model, prompt, limit=200):
    ids = [CHARS.index(c) for c in prompt]
    while ids[-1] != STOP and len(ids) < limit:
        logits = model(torch.tensor([ids[-1:]]))[0, -1]  # culprit
        ids.append(int(torch.multinomial(logits.softmax(-1), 1)))
    return "".join(CHARS[i] for i in ids)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = FSDP(CharModel(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(10 + rank)
    for epoch in range(2):
        for ids in batches(rank):
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"[{rank}] {sample(model, 't')!r}", flush=True)
        dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
