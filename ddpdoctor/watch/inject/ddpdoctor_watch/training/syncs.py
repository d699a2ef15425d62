"""How a program uses its wrapper: reductions for each step, no_sync, the search for unused parameters, DataParallel."""

from __future__ import annotations

import sys
import time
import weakref

from ..core import describe, frames, journal, lifetime, progress, unseen
from ..models import ddp, layouts, modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

SHARDED = 0
"""Number of a model that fully_shard shares out, in place of a wrapper's."""
_FRAMES = 8
_WARM = 3
"""Searches of a wrapper that are not timed: the first ones come with much else that is done once."""
_UNENCLOSED = 8
"""Last backward that is written down of those of one wrapper that no_sync alone encloses: the first, second, fourth …
up to this one are."""
_UNFOLLOWED = 1 << 10
"""Last forward that is written down of those of one wrapper that no backward followed, in the same way."""


class _State:
    """What this process has counted of reductions, of no_sync, and of searches for unused parameters."""

    def __init__(self) -> None:
        self.kept = 0
        self.sharded: Any = None
        """First group of parameters (weakly) of a model that fully_shard shares out."""
        self.reduced = self.unreduced = 0
        """Backwards of it that reduce its gradients, and that were told not to."""
        self.seen: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
        self.unenclosed: dict[int, int] = {}
        self.passes: dict[int, tuple[Any, int, int]] = {}
        """Wrapper -> where its last forward in training was called, and the backwards before it."""
        self.unfollowed: dict[int, int] = {}
        self.costs: dict[int, _Cost] = {}
        self.searching = 0
        """Number of the wrapper that searches now."""
        self.began = 0


class _Cost:
    """What searches of one wrapper for unused parameters took, but for the first ones."""

    def __init__(self) -> None:
        self.searches = 0
        self.spent_ns = 0
        self.first_ns = self.last_ns = 0


_state = _State()
_plain: tuple[Any, ...] = ()
"""Torch's classes of tensors that are not subclasses of anybody's."""


def install() -> None:
    """Know the classes of torch's own; called when a group of several ranks has been made."""
    global _plain
    torch: Any = sys.modules["torch"]
    _plain = torch.Tensor, torch.nn.Parameter


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _state
    _state = _State()


def note_backward(frame: FrameType) -> None:
    """Count a backward that adds to gradients that are there, and see one that no_sync encloses but not its forward."""
    if _state.sharded is not None:
        _ask_sharded(_state.sharded())  # of a plain job there is none
    for entry in ddp.remembered:
        wrapper = entry.wrapper()
        if wrapper is None:
            continue
        if not getattr(wrapper, "require_backward_grad_sync", True):
            _note_unenclosed(entry.number, frame)
        first = entry.parameters[0]() if entry.parameters else None
        if first is None:
            continue
        if type(first) not in _plain:
            _state.kept += _ask_unseen(first)
        elif first.is_leaf and first.grad is not None:
            _state.kept += 1


def note_forward(number: int, frame: FrameType) -> None:
    """See that no backward came between two forwards in training from one line: what was to come was skipped.

    Args:
        number: Of the wrapper.
        frame: From which it is called.
    """
    code, at, backwards = frame.f_code, frame.f_lasti, progress.backwards
    before = _state.passes.get(number)
    _state.passes[number] = code, at, backwards
    if before is not None and before[2] == backwards and before[1] == at and before[0] is code:
        count = _state.unfollowed[number] = _state.unfollowed.get(number, 0) + 1
        if not count & (count - 1) and count <= _UNFOLLOWED:
            journal.write(
                "unfollowed",
                {"number": number, "count": count, "frames": frames.list_own(frame, _FRAMES)},
            )


@unseen.behind
def _ask_sharded(part: Any) -> None:
    """Count a backward of a model that fully_shard shares out."""
    if part is None:
        return
    alone = not getattr(part, "reduce_grads", True)
    _state.unreduced += alone
    _state.reduced += not alone
    first = next((each.sharded_param for each in part.fsdp_params if each.sharded_param.requires_grad), None)
    _state.kept += first is not None and first.grad is not None


@unseen.behind
def _ask_unseen(parameter: Any) -> bool:
    return parameter.is_leaf and parameter.grad is not None


def begin_search(number: int) -> None:
    """A wrapper that searches has made a forward: the search is next, where gradients are recorded."""
    _state.searching, _state.began = number, time.monotonic_ns()


def end_search(_: Any, frame: FrameType, args: Any) -> None:
    """The search is over, if there was one."""
    number, _state.searching = _state.searching, 0
    wrapper = frame.f_locals.get("self")
    torch: Any = sys.modules["torch"]
    if not number or not torch.is_grad_enabled() or not getattr(wrapper, "require_backward_grad_sync", False):
        return
    cost = _state.costs.setdefault(number, _Cost())
    now = time.monotonic_ns()
    cost.searches += 1
    if cost.searches <= _WARM:
        cost.first_ns = now
    else:
        cost.spent_ns += now - _state.began
        cost.last_ns = now


def note_look(optimizer: int, optimizers: int, step: int, backwards: int) -> None:
    """Write down how many backwards and reductions the steps since the last look took, after a step.

    Args:
        optimizer: Its number.
        optimizers: How many there are.
        step: From 1.
        backwards: That were begun so far.
    """
    wrappers = ddp.list_wrappers()
    if len(wrappers) == optimizers == 1:
        synced, alone, _ = ddp.count_forwards(wrappers[0][0])
        _write_pace(wrappers[0][0], step, backwards, synced, alone)
    elif not wrappers and optimizers == 1:
        _note_sharded(step, backwards)
    for number, wrapper in wrappers:
        _note_search(number, wrapper, step)


def _note_sharded(step: int, backwards: int) -> None:
    """Do the same of a model that fully_shard shares out; it is known from the first look on."""
    if _state.sharded is not None:
        _write_pace(SHARDED, step, backwards, _state.reduced, _state.unreduced)
        return
    parts = [part for part in map(layouts.find_part, modules.list_roots()) if part is not None]
    if len(parts) == 1:
        _state.sharded, _state.seen = weakref.ref(parts[0]), (step, backwards, 0, 0, 0)


def _write_pace(number: int, step: int, backwards: int, synced: int, alone: int) -> None:
    seen = (step, backwards, _state.kept, synced, alone)
    counts = [now - before for now, before in zip(seen, _state.seen)]
    _state.seen = seen
    journal.write(
        "pace",
        {
            "number": number,
            "step": step,
            "steps": counts[0],
            "backwards": counts[1],
            "kept": counts[2],
            "synced": counts[3],
            "alone": counts[4],
        },
    )


def note_data_parallel(device_type: Any, frame: FrameType, args: Any) -> None:
    """Write down that a DataParallel is made."""
    if frame.f_code.co_name != "__init__":
        return
    torch: Any = sys.modules["torch"]
    seen = frame.f_locals
    given = seen.get("device_ids")
    count = len(given) if isinstance(given, (list, tuple)) else None
    if device_type is None:
        count = 0
    elif count is None and device_type == "cuda":
        count = torch.cuda.device_count()
    journal.write(
        "data-parallel",
        {
            "class": describe.name_type(type(seen.get("module"))),
            "count": count,
            "frames": frames.list_own(frame, _FRAMES),
        },
    )


def _note_unenclosed(number: int, frame: FrameType) -> None:
    if ddp.count_forwards(number)[2] != 1:
        return  # its forward was under no_sync too
    count = _state.unenclosed[number] = _state.unenclosed.get(number, 0) + 1
    if count & (count - 1) or count > _UNENCLOSED:
        return
    journal.write(
        "unenclosed",
        {
            "number": number,
            "count": count,
            "frames": frames.list_own(frame, _FRAMES),
        },
    )


def _note_search(number: int, wrapper: Any, step: int) -> None:
    """Write down what a wrapper that searches for unused parameters has found, by what it logs of itself.

    It logs the first ten iterations and each hundredth (torch/csrc/distributed/c10d/logger.cpp).
    """
    if not getattr(wrapper, "find_unused_parameters", False) or getattr(wrapper, "static_graph", False):
        return
    logged = getattr(getattr(wrapper, "logger", None), "_get_ddp_logging_data", None)
    if logged is None:
        return
    numbers = logged().ints_map
    cost = _state.costs.get(number)
    timed = max(0, cost.searches - _WARM) if cost is not None else 0
    if numbers.get("iteration", 0) > 0:
        journal.write(
            "search",
            {
                "number": number,
                "step": step,
                "iteration": numbers["iteration"],
                "unused": numbers.get("unused_parameter_size"),
                "timed": timed,
                "each_ns": cost.spent_ns // timed if cost is not None and timed else None,
                "apart_ns": (cost.last_ns - cost.first_ns) // timed if cost is not None and timed else None,
            },
        )
