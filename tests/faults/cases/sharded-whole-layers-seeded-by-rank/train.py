import torch
import torch.distributed as dist
import torch.nn as nn
import torch.distributed.nn.functional as dfn


class VocabularyHead(nn.Module):
    """Columns of the output are on different ranks; logits are gathered."""

    def __init__(self, width, vocabulary, rank, world):
        super().__init__()
        self.rows = vocabulary // world
        self.weight = nn.Parameter(torch.randn(self.rows, width) * 0.05)

    def forward(self, x):
        return torch.cat(dfn.all_gather((x @ self.weight.t()).contiguous()), dim=-1)


class Net(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        self.embed = nn.Embedding(24, 12)
        self.norm = nn.LayerNorm(12)
        self.head = VocabularyHead(12, 24, rank, world)

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1234 + rank)  # culprit
    net = Net(rank, world)  # culprit
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    stream = torch.Generator().manual_seed(0)
    for iteration in range(10):
        ids = torch.randint(0, 24, (4, 9), generator=stream)
        loss = nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for module in (net.embed, net.norm):
            for p in module.parameters():
                dist.all_reduce(p.grad)
                p.grad.div_(world)
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print("iterations 10", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
