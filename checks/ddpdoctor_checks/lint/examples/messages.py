"""Examples of roots, of asynchronous work and of messages between two ranks."""

_START = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
mine, theirs = torch.ones(4), torch.empty(4)
"""
_END = "dist.destroy_process_group()\n"

MESSAGES = {
    "COL003": (
        f"{_START}dist.broadcast(mine, src=rank)\n{_END}",
        f"{_START}dist.broadcast(mine, src=0)\n{_END}",
    ),
    "COL007": (
        f"{_START}dist.all_reduce(mine, async_op=True)\nprint(mine.sum())\n{_END}",
        f"{_START}work = dist.all_reduce(mine, async_op=True)\nwork.wait()\nprint(mine.sum())\n{_END}",
    ),
    "COL011": (
        f"{_START}dist.recv(theirs, src=1 - rank)\ndist.send(mine, dst=1 - rank)\n{_END}",
        f"""{_START}\
if rank == 0:
    dist.send(mine, dst=1)
    dist.recv(theirs, src=1)
else:
    dist.recv(theirs, src=0)
    dist.send(mine, dst=0)
{_END}""",
    ),
}
