import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(40, 4, sparse=True, mode="sum")
        self.fc = nn.Linear(4, 2)

    def forward(self, tokens):
        return self.fc(self.embed(tokens))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(Net())
    sparse = torch.optim.SparseAdam(model.module.embed.parameters())
    dense = torch.optim.Adam(model.module.fc.parameters())
    for _ in range(10):
        loss = nn.functional.cross_entropy(model(torch.randint(40, (4, 3))), torch.randint(2, (4,)))
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
