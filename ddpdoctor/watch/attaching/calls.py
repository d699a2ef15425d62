"""Which call of torch.distributed a rank stands in, read from its stack: there are no numbers of calls in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.standstill import Call

COLLECTIVES = frozenset(
    (
        "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
        "all_gather_object", "all_to_all", "all_to_all_single", "barrier", "broadcast", "broadcast_object_list",
        "gather", "gather_object", "monitored_barrier", "new_group", "new_subgroups",
        "new_subgroups_by_enumeration", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
        "scatter_object_list", "split_group", "init_process_group", "destroy_process_group", "wait_tensor",
    )
)  # fmt: skip
"""Public functions of torch.distributed for which all ranks of a group have to come."""
POINT_TO_POINT = frozenset(
    ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
)
WRAPPER = "torch/nn/parallel/distributed.py"
_WRAPPED = {"__init__": "DistributedDataParallel", "forward": "DistributedDataParallel.forward"}
"""Methods of DistributedDataParallel that wait for other ranks."""
_SYNCS = ("_sync_buffers", "_sync_module_states", "_pre_forward", "_rebuild_buckets", "join")
_WORK = re.compile(
    r"\b\w*(?:work|handle|req|request|fut|future)\w*(?:\[[^\]]*\])?\.(?:wait|synchronize)\(\)", re.I
)
"""How scripts wait for what they asked for asynchronously."""


def find_call(frames: Sequence[Frame]) -> Call | None:
    """Return the call in which a stack stands; None where its innermost frames are not torch's own.

    Of several calls within each other it is the outermost: what the user's line called.

    Args:
        frames: innermost first.
    """
    if not frames:
        return None
    if frames[0].function == "_engine_run_backward":
        return Call("backward", frames=tuple(frames))
    op = ""
    inside: list[str] = []
    for frame in frames:
        if not _is_torch(frame.file):
            break
        inside.append(frame.function)
        found = _name_op(frame, inside)
        op = found or op
    if op:
        return Call(op, point_to_point=op in POINT_TO_POINT, frames=tuple(frames))
    if frames[0].source is not None and _WORK.search(frames[0].source):
        return Call("work.wait", frames=tuple(frames))
    return None


def _is_torch(file: str) -> bool:
    return "/torch/" in file or file.startswith("torch/")


def _name_op(frame: Frame, inside: Sequence[str]) -> str | None:
    if frame.file.endswith(WRAPPER):
        op = _WRAPPED.get(frame.function)
        waits = any(name in _SYNCS or name in COLLECTIVES for name in inside) or frame.function == "__init__"
        return op if op is not None and waits else None
    if "torch/distributed/" in frame.file and (
        frame.function in COLLECTIVES or frame.function in POINT_TO_POINT
    ):
        return frame.function
    return None
