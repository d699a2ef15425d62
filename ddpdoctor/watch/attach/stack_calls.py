"""Which call of torch.distributed a rank stands in, read from its stack: there are no numbers of calls in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.standstill import Call
from ddpdoctor.facts.collectives import COLLECTIVES, GROUP_MAKERS, POINT_TO_POINT, SUBGROUP_MAKERS
from ddpdoctor.facts.ownership import TORCH

MET = frozenset((
    *COLLECTIVES, *GROUP_MAKERS, *SUBGROUP_MAKERS, "init_process_group", "destroy_process_group", "wait_tensor",
))  # fmt: skip
"""Public functions for which all ranks of a group have to come, whatever file of torch.distributed they are in."""
C10D = "torch/distributed/distributed_c10d.py"
"""Holds the public functions themselves: what waits there waits for other ranks, whatever its name is."""
_QUICK = ("_", "<", "get_", "is_", "supports_", "record_")
"""How functions of that file begin that are not public, or that wait for nobody."""
_GENERATED = re.compile(r"\b_c10d_functional\w*\.(\w+)")
"""A collective in code that torch's compiler has made."""
TWO_SIDED = frozenset((*POINT_TO_POINT, "batch_isend_irecv"))
WRAPPER = "torch/nn/parallel/distributed.py"
_WRAPPED = {"__init__": "DistributedDataParallel", "forward": "DistributedDataParallel.forward"}
"""Methods of DistributedDataParallel that wait for other ranks."""
_SYNCS = ("_sync_buffers", "_sync_module_states", "_pre_forward", "_rebuild_buckets", "join")
_WORK = re.compile(r"(?:work|handle|req|fut)\w{0,60}(?:\[[^\]]{0,60}\])?\.(?:wait|synchronize)\(\)", re.I)
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
        if frame.whose != TORCH:
            break
        inside.append(frame.function)
        found = _name_op(frame, inside)
        op = found or op
    if op:
        return Call(op, point_to_point=op in TWO_SIDED, frames=tuple(frames))
    source = frames[0].source or ""
    made = _GENERATED.search(source)
    if made is not None:
        return Call(made[1].rstrip("_"), frames=tuple(frames))
    if _WORK.search(source):
        return Call("work.wait", frames=tuple(frames))
    return None


def _name_op(frame: Frame, inside: Sequence[str]) -> str | None:
    if frame.file.endswith(WRAPPER):
        op = _WRAPPED.get(frame.function)
        waits = any(name in _SYNCS or name in MET for name in inside) or frame.function == "__init__"
        return op if op is not None and waits else None
    if "torch/distributed/" not in frame.file:
        return None
    known = frame.function in MET or frame.function in TWO_SIDED
    public = frame.file.endswith(C10D) and not frame.function.startswith(_QUICK)
    return frame.function if known or public else None
