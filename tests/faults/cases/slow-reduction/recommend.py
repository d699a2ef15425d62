import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ITEMS, WIDTH = 120_000, 64


class Recommender(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(ITEMS, WIDTH)
        self.score = torch.nn.Linear(WIDTH, 1)

    def forward(self, history):
        return self.score(self.items(history).mean(1)).squeeze(1)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Recommender())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for batch in range(40):
    history, clicked = torch.randint(ITEMS, (16, 8)), torch.rand(16)
    loss = (model(history) - clicked).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(f"loss {loss.item():.3f}")
del model
dist.destroy_process_group()
