import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

IGNORE = -100


class Dialogs(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        length = int(torch.randint(4, 20, (1,), generator=g))
        ids = (torch.randint(0, 32, (1,), generator=g) + 3 * torch.arange(length)) % 32
        labels = ids.clone()
        labels[: length // 3] = IGNORE
        return ids, labels


def collate(rows):
    ids, labels = zip(*rows)
    return pad_sequence(ids, True, 0), pad_sequence(labels, True, IGNORE)


class GRULM(nn.Module):
    def __init__(self, vocab=32, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.mix(self.embed(ids)))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = GRULM()
    fully_shard(model.mix)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = Dialogs(64)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=4, sampler=sampler, collate_fn=collate)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for ids, labels in loader:
            tokens = (labels[:, 1:] != IGNORE).sum()
            dist.all_reduce(tokens)
            logits = model(ids)[:, :-1]
            total = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
            loss = total / tokens
            (loss * world).backward()
            optimizer.step()
            optimizer.zero_grad()
            shown = loss.detach().clone()
            dist.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch} loss {shown.item():.3f} over {int(tokens)} tokens")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
