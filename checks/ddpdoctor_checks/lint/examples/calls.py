"""Examples of collectives and groups."""

CALLS = {
    "COL002": (
        """\
import torch.distributed as dist

def evaluate(model, loader):
    total = model(loader)
    if dist.get_rank() == 0:
        dist.all_reduce(total)
        print(total)
""",
        """\
import torch.distributed as dist

def evaluate(model, loader):
    total = model(loader)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(total)
""",
    ),
    "COL006": (
        """\
import torch.distributed as dist

rank = dist.get_rank()
if rank < 2:
    pair = dist.new_group([0, 1])
    dist.barrier(group=pair)
""",
        """\
import torch.distributed as dist

rank = dist.get_rank()
pair = dist.new_group([0, 1])
if rank < 2:
    dist.barrier(group=pair)
""",
    ),
}
