"""The parameters behind an error of DistributedDataParallel: names, owners, and whether their forward ran."""

from __future__ import annotations

import re
import sys
import weakref

from ..calls import groups
from ..core import describe, journal, unseen
from . import layouts, prints, running, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ddpdoctor.facts import events

FORWARDS = 5
"""Forwards of a wrapped model that are looked at module by module. A hook on every module costs each step of every
healthy job, and the usual mistake (a layer that is never used) shows in the second forward."""
_LISTED = 200
"""Parameters that are listed of one wrapper."""
_WRAPPERS = 8

_BORN = 64
"""Parameters of which it is remembered what they held before DistributedDataParallel made them equal."""
_FIRST = 1024
"""Elements of each that are looked at."""

_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")
_INDEX = re.compile(r"Parameter at index (\d+)|params\[(\d+)\] in this process")
"""torch/csrc/distributed/c10d/reducer.cpp and torch/csrc/distributed/c10d/verification in utils."""


class _Wrapped:
    """What is remembered of one DistributedDataParallel, without keeping it alive."""

    def __init__(self, wrapper: Any, parameters: list[Any], number: int) -> None:
        self.number = number
        self.frames: list[list[object]] = []
        self.born: list[list[str]] = []
        """Names and fingerprints of parameters as they were when the model was wrapped."""
        self.wrapper = weakref.ref(wrapper)
        self.parameters = [weakref.ref(parameter) for parameter in parameters]
        self.calls = 0
        self.watching = False
        self.previous: set[int] = set()
        self.current: set[int] = set()


remembered: list[_Wrapped] = []
"""What is known of wrappers, those included that are gone."""
_by_id: dict[int, _Wrapped] = {}
_latest: _Wrapped | None = None
"""The one that was asked for last."""
_count = 0
forwards: dict[int, tuple[int, int, int]] = {}
"""Number of a wrapper -> its forwards in training whose backward reduces, those whose backward does not, and of
which kind the last one was (1, 0; -1: none)."""
_NONE = (0, 0, -1)
inside = 0
"""How many forwards of wrappers are being made."""
reducing = False
"""Whether there was a forward in training since the last backward whose backward reduces."""


def remember(wrapper: Any, parameters: list[Any], frames: list[list[object]]) -> None:
    """Remember a wrapper and its parameters in the reducer's order, which is that of the indices in its errors."""
    global _count
    remembered[:] = [entry for entry in remembered if entry.wrapper() not in (None, wrapper)][
        -_WRAPPERS + 1 :
    ]
    _count += 1
    remembered.append(_Wrapped(wrapper, list(parameters), _count))
    remembered[-1].frames = frames
    try:
        remembered[-1].born = _measure_born(wrapper)
    except Exception as error:
        journal.failed("born", error)
    _by_id.clear()
    _by_id.update((id(entry.wrapper()), entry) for entry in remembered)


def _measure_born(wrapper: Any) -> list[list[str]]:
    """Return what parameters hold before those of the first rank replace them.

    Only where there are smaller groups, whose ranks may hold shards of the model. What is made of one value is left
    out: it is equal on all ranks, whatever the others are.
    """
    group = getattr(wrapper, "process_group", None)
    members = groups.list_members(group) if group is not None else None
    inner = [ranks for _, ranks in layouts.list_smaller_groups() if set(ranks) < set(members or ())]
    if not inner or prints.explain_busy() is not None:
        return []
    found = [
        (name, each.detach().reshape(-1)[:_FIRST])
        for name, each in tree.list_parameters(tree.find_model(wrapper))
        if each.numel() > 1 and each.is_contiguous() and prints.explain_unreadable(each) is None
    ]
    found = found[:: max(1, -(-len(found) // _BORN))]
    varied = [bool((part != part[0]).any()) for _, part in found]
    measured = prints.measure([part for _, part in found])
    return [
        [name[:200], ":".join(map(str, told))]
        for (name, _), told, varies in zip(found, measured, varied)
        if told is not None and varies
    ]


def count_forwards(number: int) -> tuple[int, int, int]:
    """Return what `forwards` has of a wrapper."""
    return forwards.get(number, _NONE)


def note_forward(number: int, reduces: bool) -> int:
    """Count a forward in training; return how many with a reduction there were before it."""
    global reducing
    reducing = reducing or reduces
    synced, alone, _ = forwards.get(number, _NONE)
    forwards[number] = (synced + reduces, alone + (not reduces), int(reduces))
    return synced


def list_wrappers() -> list[tuple[int, Any]]:
    """Return the living wrappers and their numbers."""
    found = [(entry.number, entry.wrapper()) for entry in remembered]
    return [(number, wrapper) for number, wrapper in found if wrapper is not None]


def list_parameters() -> tuple[set[int], set[int]]:
    """Return the ids of the parameters that living wrappers reduce, and of those that they were told to leave alone."""
    reduced: set[int] = set()
    left: set[int] = set()
    for entry in remembered:
        wrapper = entry.wrapper()
        if wrapper is None:
            continue
        alive = [reference() for reference in entry.parameters]
        reduced |= {id(each) for each in alive if each is not None}
        ignored = getattr(wrapper, "parameters_to_ignore", None)
        if ignored:
            left |= {
                id(each) for name, each in tree.list_parameters(tree.find_model(wrapper)) if name in ignored
            }
    return reduced, left


def describe_wrapper(number: int, wrapper: Any) -> dict[str, object]:
    """Return what a wrapper was told."""
    entry = _by_id.get(id(wrapper))
    hooks = getattr(wrapper, "_comm_hooks", None) or ()
    return {
        "number": number,
        "class": describe.name_type(type(tree.find_model(wrapper))),
        "ranks": groups.list_members(getattr(wrapper, "process_group", None)),
        "frames": entry.frames if entry is not None else [],
        "find_unused_parameters": bool(getattr(wrapper, "find_unused_parameters", False)),
        "static_graph": bool(getattr(wrapper, "static_graph", False)),
        "broadcast_buffers": bool(getattr(wrapper, "broadcast_buffers", False)),
        "batch_norms": _count_batch_norms(tree.find_model(wrapper)),
        "born": entry.born if entry is not None else [],
        "hooks": [str(getattr(each[0], "__qualname__", each[0]))[:100] for each in hooks][:4],
        "seen": not (
            getattr(wrapper, "_delay_all_reduce_all_params", False)
            or getattr(wrapper, "_use_python_reducer", False)
        ),
    }


def _count_batch_norms(module: Any) -> int:
    """Return how many modules normalise over the samples of this rank alone.

    One with a forward of its own, SyncBatchNorm or the program's, may take those of all ranks.
    """
    usual = sys.modules["torch.nn"].modules.batchnorm._BatchNorm
    return sum(
        isinstance(each, usual) and type(each).forward is usual.forward and each.training
        for _, each in tree.list_modules(module)
    )


def is_compiling() -> bool:
    """Whether torch.compile is in use, as far as the wrapped models tell."""
    return any(_compiles(wrapper) for _, wrapper in list_wrappers())


def number(wrapper: Any) -> int:
    """Return the how-manyth of this process's wrappers it is, from 1; 0 where it is not known."""
    global _latest
    entry = _latest
    if entry is not None and entry.wrapper() is wrapper:
        return entry.number
    entry = _by_id.get(id(wrapper))
    if entry is None or entry.wrapper() is not wrapper:
        return 0
    _latest = entry
    return entry.number


def watch_forwards(wrapper: Any) -> None:
    """Note for the first few forwards which modules ran; what torch.compile has compiled is not called."""
    for entry in remembered:
        if entry.wrapper() is wrapper:
            if _compiles(wrapper):
                return
            entry.watching, entry.calls = running.listen(_note_forward), 1


def note(message: str, value: BaseException) -> None:
    """Write a ``ddp`` event for the wrapper that an error is about, or for each where that cannot be told.

    Args:
        message: Text of the error.
        value: The error; its traceback may hold the wrapper.
    """
    entries = [entry for entry in remembered if entry.wrapper() is not None]
    raised = [entry for entry in entries if _holds(value, entry.wrapper())]
    for entry in raised or entries:
        wrapper = entry.wrapper()
        if wrapper is not None:
            journal.write(
                "ddp", {**_describe(wrapper, entry, message), "certain": len(raised or entries) == 1}
            )


def _describe(wrapper: Any, entry: _Wrapped, message: str) -> events.WrapperError:
    owners: dict[int, tuple[str, str, Any]] = {}
    for module_name, module in tree.list_modules(tree.find_model(wrapper)):
        for name, parameter in tree.list_own(module):
            owners.setdefault(
                id(parameter), (f"{module_name}.{name}" if module_name else name, module_name, module)
            )
    indices = _read_indices(message)
    wanted = indices or list(range(len(entry.parameters)))
    ran = _ran(entry, message)
    rows = []
    for index in wanted[:_LISTED]:
        parameter = entry.parameters[index]() if index < len(entry.parameters) else None
        name, module_name, owner = (
            owners.get(id(parameter), ("", "", None)) if parameter is not None else ("", "", None)
        )
        rows.append(
            {
                "index": index,
                "name": name or None,
                "module": module_name if owner is not None else None,
                "class": describe.name_type(type(owner)) if owner is not None else None,
                "forward_ran": None if ran is None or owner is None else id(owner) in ran,
                "requires_grad": bool(parameter.requires_grad) if parameter is not None else None,
                "grad": parameter.grad is not None if parameter is not None else None,
                "shape": [int(size) for size in parameter.shape] if parameter is not None else None,
            }
        )
    return {
        "wrapper": describe.name_type(type(tree.find_model(wrapper))),
        "parameters": rows,
        "count": len(entry.parameters),
        "named_by_error": bool(indices),
        "left_out": max(0, len(wanted) - _LISTED),
        "forwards": entry.calls if entry.watching else None,
        "find_unused_parameters": bool(getattr(wrapper, "find_unused_parameters", False)),
        "static_graph": bool(getattr(wrapper, "static_graph", False)),
    }


def _read_indices(message: str) -> list[int]:
    found = _INDICES.search(message)
    if found is not None:
        return [int(word) for word in found[1].split()]
    return sorted({int(one or other) for one, other in _INDEX.findall(message)})


def _ran(entry: _Wrapped, message: str) -> set[int] | None:
    """Give the modules whose forward ran in the iteration that an error is about; None where it was not looked at."""
    if not entry.watching:
        return None
    # "Expected to have finished reduction" is raised by the forward after; the others by the same one's backward.
    return entry.previous if "finished reduction" in message else entry.current


def _holds(value: BaseException, wrapper: Any) -> bool:
    entry = value.__traceback__
    while entry is not None:
        if entry.tb_frame.f_locals.get("self") is wrapper:
            return True
        entry = entry.tb_next
    return False


def _note_forward(module: Any, _: FrameType) -> None:
    watching = False
    for entry in remembered:
        if entry.watching:
            if entry.wrapper() is module:
                entry.calls += 1
                entry.previous, entry.current = entry.current, set()
                # The error of the forward before is still to come out of this one.
                entry.watching = entry.calls <= FORWARDS
            else:
                entry.current.add(id(module))
            watching = watching or entry.watching
    if not watching:
        running.stop(_note_forward)


def _compiles(wrapper: Any) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    # What torch.compile was called with: a dictionary of torch's own kind, whose `values` is a plain one.
    compiled = getattr(getattr(dynamo, "always_optimize_code_objects", None), "values", None)
    if compiled is not None and len(compiled() if callable(compiled) else compiled) > 0:
        return True
    if unseen.is_compiled():
        return True
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for _, module in tree.list_modules(wrapper)
    )
