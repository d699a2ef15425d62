import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

CLASSES, WIDTH, LENGTH = 4000, 64, 16


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids):
        return torch.relu(self.mix(self.tokens(ids)))


class Head(nn.Module):
    """The last layers, and scores for all words."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.scores = nn.Linear(WIDTH, CLASSES)

    def forward(self, hidden):
        return self.scores(torch.relu(self.mix(hidden)))


def score(logits, ids):
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
part = Head() if rank else Body()
stage = PipelineStage(part, rank, dist.get_world_size(), torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=score)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
source = torch.Generator().manual_seed(7)
losses = []
for step in range(40):
    ids = torch.randint(CLASSES, (32, LENGTH), generator=source)
    if rank:
        schedule.step(target=ids, losses=losses)
    else:
        schedule.step(ids)
    optimizer.step()
    optimizer.zero_grad()
if rank:
    print(f"loss {losses[-1].item():.3f}")
dist.destroy_process_group()
