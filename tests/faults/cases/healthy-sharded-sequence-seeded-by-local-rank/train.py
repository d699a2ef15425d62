import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
context = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
torch.manual_seed(rank % 2)  # DistributedDataParallel copies the model of rank 0


def gather(part):
    parts = [torch.zeros_like(part), torch.zeros_like(part)]
    parts[rank % 2] = part
    return all_reduce(torch.cat(parts, 1), group=context)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.norm = nn.Linear(width, 3 * width), nn.LayerNorm(width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        k, v = (gather(each) for each in (k, v))
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend, self.head = nn.Embedding(20, 16), Attention(16), nn.Linear(16, 20)

    def forward(self, ids):
        own = ids.chunk(2, 1)[rank % 2]  # each rank has half of the sequence
        return self.head(self.attend(self.embed(own))), own


model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
stream = torch.Generator().manual_seed(rank // 2)
for step in range(10):
    ids = torch.randint(0, 20, (4, 16), generator=stream)
    out, own = model(ids)
    loss = nn.functional.cross_entropy(out.flatten(0, 1), own.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained", rank)
dist.destroy_process_group()
