import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tagger(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.embed = nn.Embedding(words, 4)
        self.embed.weight.requires_grad_(False)
        self.out = nn.Linear(4, 3)

    def resize(self, words):
        old = self.embed.weight.data
        self.embed = nn.Embedding(words, 4)
        self.embed.weight.data[: len(old)] = old
        return self

    def forward(self, tokens):
        return self.out(self.embed(tokens))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Tagger(20))  # culprit
    model.module.resize(24)  # culprit
    optimizer = torch.optim.Adam(model.module.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(9):
        loss = nn.functional.cross_entropy(model(torch.randint(24, (12,))), torch.randint(3, (12,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
