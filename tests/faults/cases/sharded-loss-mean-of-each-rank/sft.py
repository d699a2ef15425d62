import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD = -100


class Instructions(Dataset):
    """Prompts whose answers have any length from 1 to 30 tokens."""

    def __init__(self, count, vocabulary):
        self.count, self.vocabulary = count, vocabulary

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        length = int(torch.randint(1, 31, (1,), generator=g))
        prompt = torch.randint(0, self.vocabulary, (4,), generator=g)
        answer = (prompt.sum() + torch.arange(length)) % self.vocabulary
        labels = torch.cat([torch.full((4,), PAD), answer])
        return torch.cat([prompt, answer]), labels


def collate(batch):
    ids = pad_sequence([ids for ids, _ in batch], batch_first=True, padding_value=0)
    labels = pad_sequence([labels for _, labels in batch], batch_first=True, padding_value=PAD)
    return ids, labels


class Model(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(2))
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, ids, labels):
        h = self.embed(ids)
        for layer in self.layers:
            h = h + layer(h)
        logits = self.lm_head(h)[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=PAD)  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model(vocabulary=32, dim=16)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    data = Instructions(64, 32)
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=2, sampler=sampler, collate_fn=collate)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for ids, labels in loader:
            loss = model(ids, labels)  # culprit
            optimizer.zero_grad()
            loss.backward()  # culprit
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
