"""Examples of which GPU a rank uses."""

_START = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
"""
_SET = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
_END = "dist.destroy_process_group()\n"

DEVICES = {
    "BKD004": (
        f"{_START}torch.cuda.set_device(dist.get_rank())\ndist.barrier()\n{_END}",
        f"{_START}{_SET}dist.barrier()\n{_END}",
    ),
    "BKD008": (
        f"{_START}{_SET}count = torch.zeros(1)\ndist.all_reduce(count)\n{_END}",
        f'{_START}{_SET}count = torch.zeros(1, device="cuda")\ndist.all_reduce(count)\n{_END}',
    ),
    "BKD009": (
        f"{_START}dist.barrier()\n{_SET}{_END}",
        f"{_START}{_SET}dist.barrier()\n{_END}",
    ),
}
