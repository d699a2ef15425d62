import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset


class Bytes(IterableDataset):
    def __init__(self, path, length):
        self.path, self.length = path, length

    def __iter__(self):
        with open(self.path, "rb") as file:
            while len(chunk := file.read(self.length + 1)) == self.length + 1:
                yield torch.tensor(list(chunk))


class ByteModel(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))
        self.unembed = nn.Linear(dim, 256, bias=False)

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = h + torch.tanh(layer(h))
        return self.unembed(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", required=True)
    parser.add_argument("--seq-len", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = ByteModel()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Bytes(args.file, args.seq_len), batch_size=4)  # culprit
    seen = 0
    for _ in range(args.epochs):
        for ids in loader:  # culprit
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += ids[:, 1:].numel() * dist.get_world_size()
    if dist.get_rank() == 0:
        print(f"tokens seen {seen}, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
