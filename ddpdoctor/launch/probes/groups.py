"""Leaving process groups so that torch never destroys the object itself.

Up to torch 2.8 (seen with 2.4 and 2.7) gloo's destructor, which Python runs while it holds its lock, waits for a
thread that may need that lock to let go of the tensors of the last collective: the rank stands for ever. A group that
is left here is unknown to torch afterwards, as ever, and its object lives until the rank has ended.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

_left: list[Any] = []
"""Process groups that this rank has left: fewer than ten, and it ends without tearing the interpreter down."""


def leave_group(group: Any = None) -> None:
    """Do what ``destroy_process_group`` does, and keep the object.

    Args:
        group: which; None means the default group, and all others with it.
    """
    from torch.distributed import distributed_c10d

    known = getattr(getattr(distributed_c10d, "_world", None), "pg_map", None) or {}
    _left.extend(known if group is None else [group])
    dist.destroy_process_group(group)
