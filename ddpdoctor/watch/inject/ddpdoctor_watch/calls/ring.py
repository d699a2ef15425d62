"""The ring of collective calls: what this process asks of torch.distributed, written down before it is asked.

A file of fixed size, mapped into memory (its layout: ddpdoctor/facts/wire.py): a call costs no system call, and what
was written is there whatever becomes of the process, also while it holds the interpreter's lock. What repeats (call
sites, signatures, groups) goes into the journal once and is a number here. How the calls are seen is in `decorators`.
"""

from __future__ import annotations

import sys
import time
from _thread import _local
from bisect import bisect_right

from ..core import budget, frames, journal, lifetime, stopwatch
from ..core.replacing import leave_uncompiled
from . import groups
from .mapped import append, intern_signature, name_reduction, open_ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

    from ddpdoctor.facts import events, wire

    from .mapped import Ring
    from .specs import Spec
else:
    from .. import wire


_MADE = (wire.INIT, wire.WRAP)
_EXCHANGES = "all_to_all"
"""What names of such collectives begin with."""
_SCATTERED = 1024
"""Parts of sums that are remembered from one backward to the next."""
_ROUTED = 64
"""Lines of exchanges whose rows are added up."""


_ring: Ring | None = None
_failed = False
calling: Any = _local()
"""Of this thread: how deep it is in calls that are written down, ``depth``; what `take_token` gives, ``token``."""
settle: Callable[[int, int], object] | None = None
"""Told of each barrier that is waited for: its number and its group."""
gathers: Callable[[str, Any, Any, FrameType | None], object] | None = None
"""Told of each call that gathers while gradients are recorded: operation, input, output and the caller's frame."""


def note_beginning(spec: Spec, frame: FrameType) -> None:
    """Write down a call of a function of which only the beginning is seen, from its own frame.

    It is no part of a call that is written down already.
    """
    calling.token = begin(spec, (), frame.f_locals, wire.END_UNKNOWN, frame.f_back)
    calling.depth = 0


def take_token() -> int:
    """Return what `end` would want for the call whose beginning this thread saw last; 0 where there is none."""
    token: int = getattr(calling, "token", 0)
    calling.token = 0
    return token


def begin(
    spec: Spec, args: tuple[Any, ...], kwargs: dict[str, Any], flags: int = 0, frame: FrameType | None = None
) -> int:
    """Write down that a public function is about to be called.

    All in one: it runs before each collective, and calls of Python's cost most of what it does.

    Args:
        spec: Where its arguments are.
        args: By position.
        kwargs: By name.
        flags: More than what the arguments tell.
        frame: From which it is called; else the frame of our caller's caller.

    Returns:
        What `end` wants.
    """
    depth = getattr(calling, "depth", 0)
    calling.depth = depth + 1
    if depth:
        return 0
    try:
        ring = _ring or _open()
        if ring is None:
            return 0
        if frame is None:
            frame = sys._getframe(2)
        ring.public += 1
        given: dict[Any, Any] = kwargs
        if spec.lone and len(args) == 1:
            # A tensor by position and no rank named: most calls. What may stand beside it is by name, or has a default.
            tensor: Any = args[0]
            reduction = given.get("op", spec.reduction) if given else spec.reduction
        else:
            given = {**spec.defaults, **kwargs}
            given.update(zip(spec.places, args))
            if spec.makes:
                return _write_maker(ring, spec.name, given, frame)
            tensor = given.get(spec.tensor)
            reduction = given.get("op")
        if reduction is not None:
            known, name = ring.reduction
            reduction = name if known is reduction else name_reduction(ring, reduction)
        if type(tensor) is ring.tensor and not ring.count_modes():
            elements = tensor.numel()
            key = (spec.name, tensor.shape if spec.compared else None, tensor.dtype, tensor.device, reduction)
        else:
            elements, key = _describe_given(ring, spec, tensor, reduction)
        signature = ring.signatures.get(key)
        if signature is None:
            signature = intern_signature(ring, key, _describe_signature(key))
        get = given.get
        named = get("group") if given else None
        # What stands for a group that a rank is not in has no name: it is not the default one.
        called = (getattr(named, "group_name", None) or "") if named is not None else None
        group = ring.groups.numbers.get(called) or ring.groups.find(named)
        site = ring.sites.find(frame)
        if given and get("async_op"):
            flags |= wire.ASYNC
        peer = _find_peer(ring, spec, given, group) if spec.peers or spec.rooted else -1
        if spec.two_sided:
            ring.exchanged += elements
            return _write_pair(ring, spec, given, signature, site, group, peer, flags)
        ordinal = ring.ordinals[group] = ring.ordinals.get(group, 0) + 1
        token = append(ring, ordinal, signature, site, group, peer, 0, flags)
        ring.elements += elements
        if reduction is not None:
            ring.summed += elements
            if elements >= ring.largest:
                ring.largest, ring.summing = elements, site
        if _in_backward() < 0:
            ring.carried[group] = ring.carried.get(group, 0) + elements
            ring.carrying = site
            if spec.splits is not None:
                _count_rows(ring, site, *map(get, spec.splits))
        if spec.gathered is not None and gathers is not None and ring.is_recording():
            gathers(spec.name, tensor, get(spec.gathered), frame)
        if spec.scattered is not None:
            _note_scattered(
                ring, tensor if spec.tensor == spec.scattered else get(spec.scattered), group, peer
            )
        if stopwatch.state.thread > 0 and ring.groups.count_members(group) >= budget.ranks:
            stopwatch.begin_call(not flags & (wire.ASYNC | wire.END_UNKNOWN))
        if spec.settles and settle is not None and not flags & wire.ASYNC:
            settle(ring.count, group)
        return token
    except Exception as error:
        give_up()
        journal.failed("calls", error)
        return 0


def give_up() -> None:
    """Write no more calls down, and say that these are not all: no reader may take what is missing for not made."""
    global _ring, _failed
    ring, _ring, _failed = _ring, None, True
    if ring is not None:
        ring.view[: len(wire.BLIND)] = wire.BLIND


def begin_round() -> None:
    """A backward begins: what collectives carry from its end on is gradients, until the optimizer steps."""
    global _in_backward
    ring = _ring
    if ring is not None:
        ring.carried.clear()
        ring.scattered.clear()
        if _in_backward is _give_less:
            core: Any = sys.modules.get("torch._C")
            _in_backward = getattr(core, "_current_graph_task_id", _give_zero)


def list_carried() -> list[tuple[int, int]]:
    """Return the groups whose collectives were called since a backward began, and the elements that they carried."""
    return list(_ring.carried.items()) if _ring is not None else []


def list_carrying() -> list[list[object]]:
    """Return the frames of the last of these calls; none where they are not known."""
    return list_frames(_ring.carrying) if _ring is not None else []


def has_exchanged() -> bool:
    """Whether the program has called an all_to_all."""
    signatures = _ring.signatures if _ring is not None else {}
    return any(isinstance(key, tuple) and str(key[0]).startswith(_EXCHANGES) for key in signatures)


def list_members(group: int) -> tuple[int, ...]:
    """Return the ranks of a group, by its number; none where they are not known."""
    return _ring.groups.members(group) if _ring is not None else ()


def end(token: int) -> None:
    """Write down that the call that `begin` gave this for has returned or raised."""
    try:
        calling.depth -= 1
        ring = _ring
        if token and ring is not None:
            ring.pack_number(ring.view, token + wire.END_AT, time.monotonic_ns())
            if stopwatch.state.calling >= 0:
                stopwatch.end_call()
    except Exception as error:
        give_up()
        journal.failed("calls", error)


def failed(token: int) -> None:
    """Write down that the call that `begin` gave this for has raised: whether it took part is not known."""
    ring = _ring
    if token and ring is not None:
        ring.view[token + wire.FLAGS_AT] |= wire.RAISED


def begin_other(op: str, index: int, frame: FrameType | None, **more: object) -> int:
    """Write down that something begins that is no public collective but may wait for other ranks.

    Args:
        op: What, e.g. ``DistributedDataParallel``.
        index: Which of several.
        frame: Where.
        more: What else makes it another signature.

    Returns:
        What `end_other` wants.
    """
    return _begin_other((op, index, *more.values()), frame, more)


def begin_forward(index: int, syncs: bool, reduces: bool, frame: FrameType | None) -> int:
    """Do the same for a forward of DistributedDataParallel: it broadcasts buffers; its backward reduces."""
    key = (wire.FORWARD, index, syncs, reduces)
    ring = _ring
    signature = ring.signatures.get(key) if ring is not None else None
    if ring is None or signature is None:
        return _begin_other(key, frame, None)
    place = key[:2]
    ordinal = ring.ordinals[place] = ring.ordinals.get(place, 0) + 1
    return append(ring, ordinal, signature, ring.sites.find(frame), 0, -1, 0, wire.OTHER)


def _begin_other(key: tuple[object, ...], frame: FrameType | None, more: dict[str, object] | None) -> int:
    ring = _ring or _open()
    if ring is None:
        return 0
    signature = ring.signatures.get(key)
    if signature is None:
        rest = dict(zip(("syncs", "reduces"), key[2:])) if more is None else more
        fields: Any = {"op": key[0], "index": key[1], **rest}
        signature = intern_signature(ring, key, fields)
    place = key[:2]
    ordinal = ring.ordinals[place] = ring.ordinals.get(place, 0) + 1
    return append(ring, ordinal, signature, ring.sites.find(frame), 0, -1, 0, wire.OTHER)


def end_other(token: int) -> None:
    """Write down that it has ended."""
    ring = _ring
    if token and ring is not None:
        ring.pack_number(ring.view, token + wire.END_AT, time.monotonic_ns())


def forget_groups() -> None:
    """The default group was made or destroyed: names of groups mean others from now on."""
    ring = _ring
    if ring is not None:
        ring.groups.forget()


for each in (begin, end):
    leave_uncompiled(each)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child has a ring of its own, once it calls something."""
    global _ring, _failed
    ring, _ring, _failed = _ring, None, False
    frames.after_fork()
    if ring is not None:
        ring.view.close()  # The child's mapping only.


def _find_peer(ring: Ring, spec: Spec, given: dict[Any, Any], group: int) -> int:
    """Return the rank that a call names; -1 where it names none."""
    for name in spec.peers:
        value = given.get(name)
        if value is not None:
            peer = max(-1, min(int(value), 0x7FFFFFFF))
            return ring.groups.find_member(group, peer) if name[0] == "g" else peer  # group_src, group_dst
    # Where neither is given (torch.distributed, 2.6 and later).
    return ring.groups.find_member(group, 0) if spec.rooted else -1


def _write_pair(
    ring: Ring,
    spec: Spec,
    given: dict[Any, Any],
    signature: int,
    site: int,
    group: int,
    peer: int,
    flags: int,
) -> int:
    """Write down that this rank is about to send or to receive."""
    told = given.get("tag")
    tag = max(-0x80000000, min(told, 0x7FFFFFFF)) if type(told) is int else 0
    kind = group, spec.sends, peer, tag
    ordinal = ring.ordinals[kind] = ring.ordinals.get(kind, 0) + 1
    return append(ring, ordinal, signature, site, group, peer, tag, flags | wire.POINT_TO_POINT)


def _note_scattered(ring: Ring, output: Any, group: int, root: int) -> None:
    """Remember where a part of a sum lies that this rank alone is given: gradients of a sharded optimizer, mostly."""
    if type(output) is not ring.tensor or len(ring.scattered) >= _SCATTERED:
        return
    if root < 0 or root == groups.find_rank():
        try:
            begin = output.data_ptr()
        except RuntimeError:
            return  # a tensor of a transform, which has no memory of its own
        ring.scattered[begin] = begin + output.numel() * output.element_size(), group


def has_scattered() -> bool:
    """Whether this rank was given a part of a sum since a backward began."""
    return _ring is not None and bool(_ring.scattered)


def find_scattered(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Return the ranks among which sums were shared out of which tensors are parts; none where one of them is not."""
    ring = _ring
    if ring is None or not ring.scattered:
        return ()
    found = set()
    begins = sorted(ring.scattered)
    for each in tensors:
        if type(each) is not ring.tensor:
            return ()
        place = each.data_ptr()
        at = bisect_right(begins, place)
        end, group = ring.scattered[begins[at - 1]] if at else (0, 0)
        found.add(group if place < end else 0)
    return ring.groups.members(found.pop()) if len(found) == 1 else ()


def _count_rows(ring: Ring, site: int, sent: Any, received: Any) -> None:
    """Add up the rows of an exchange whose sizes are numbers in lists."""
    rows = 0
    for sizes in (sent, received):
        if type(sizes) not in (list, tuple) or any(type(each) is not int for each in sizes):
            return
        rows += sum(sizes)
    entry = ring.routed.get(site)
    if entry is not None:
        entry[0] += 1
        entry[1] += rows
    elif len(ring.routed) < _ROUTED:
        ring.routed[site] = [1, rows]


def find_routed() -> tuple[int, int, list[list[object]]]:
    """Return how many exchanges were made where most rows were sent and received, the rows, and the frames."""
    ring = _ring
    if ring is None or not ring.routed:
        return 0, 0, []
    site, (calls, rows) = max(ring.routed.items(), key=lambda item: item[1][1])
    return calls, rows, list_frames(site)


def _describe_given(
    ring: Ring, spec: Spec, tensor: Any, reduction: str | None
) -> tuple[int, tuple[Any, ...]]:
    """Return the elements of what a call is given, whatever that is, and the key of its signature."""
    with ring.unseen():
        shape = getattr(tensor, "shape", None)
        return _count(tensor), (
            spec.name,
            tuple(shape) if shape is not None and spec.compared else None,
            getattr(tensor, "dtype", None),
            getattr(tensor, "device", None),
            reduction,
        )


def count() -> int:
    """Return how many calls have been written down."""
    return _ring.count if _ring is not None else 0


def read_record(token: int) -> tuple[int, int, int, int]:
    """Return number, signature, call site and group of a call that `begin` gave this for."""
    ring = _ring
    if ring is None:
        return 0, 0, 0, 0
    number, _, _, _, signature, site, group = ring.unpack(ring.view, token)
    return number, signature, site, group


def describe_signature(number: int) -> tuple[str, str | None]:
    """Return operation and device of a signature; no words where it has no number."""
    for key, known in _ring.signatures.items() if _ring is not None else ():
        if known == number and isinstance(key, tuple) and len(key) > 3:
            return str(key[0]), getattr(key[3], "type", None)
    return "", None


def name_group(number: int) -> str | None:
    """Return torch's name of a group."""
    return _ring.groups.name(number) if _ring is not None else None


def _give_less() -> int:
    """Stand in for `torch._C._current_graph_task_id` until a backward was seen."""
    return -1


def _give_zero() -> int:
    """Stand in for it where this torch has none: it cannot be told what a backward calls itself."""
    return 0


_in_backward: Any = _give_less


def _count(given: Any) -> int:
    """Return the elements of a tensor, or of a list of them."""
    if isinstance(given, (list, tuple)):
        return sum(map(_count, given))
    count = getattr(given, "numel", None)
    return int(count()) if count is not None else 0


def _write_maker(ring: Ring, name: str, given: dict[Any, Any], frame: FrameType | None) -> int:
    """Write down that a group is about to be made."""
    ranks = given.get("ranks")
    key = (name, tuple(ranks) if isinstance(ranks, (list, tuple)) else None)
    signature = ring.signatures.get(key)
    if signature is None:
        listed = [int(rank) for rank in key[1]] if key[1] is not None else None
        signature = intern_signature(ring, key, {"op": name, "ranks": listed})
    ordinal = ring.ordinals[key] = ring.ordinals.get(key, 0) + 1
    named = name == "new_group" and not given.get("use_local_synchronization")
    # The place of a tag, which such a call has none of: one more than the number that becomes the group's name.
    tag = groups.count_made() + 1 if named else 0
    return append(ring, ordinal, signature, ring.sites.find(frame), 0, -1, tag, 0)


def _open() -> Ring | None:
    """Begin to write calls down, where this process has a journal."""
    global _ring, _failed
    if _failed or not journal.folder():
        return None
    _failed = True  # Once; a thread that comes meanwhile goes without.
    try:
        ring = open_ring()
        frames.begin()
        _ring = ring
    except (OSError, ValueError, ImportError, AttributeError) as error:
        journal.trouble("calls", error)
        return None
    return _ring


def _describe_signature(key: tuple[Any, ...]) -> events.Signature:
    name, shape, dtype, device, reduction = key
    return {
        "op": name,
        "shape": [int(size) for size in shape] if shape is not None else None,
        "dtype": str(dtype).rpartition(".")[2] if dtype is not None else None,
        "device": getattr(device, "type", None),
        "reduction": reduction.rpartition(".")[2].lower() if reduction is not None else None,
    }


def is_watching() -> bool:
    """Whether this process has begun to make a process group."""
    return _ring is not None


def take_counts() -> tuple[int, int, int, int]:
    """Return what the program's own calls came to so far.

    Returns:
        Public functions of torch.distributed that were called; elements that collectives carried, and those of them
        that reduce; number of the site of the largest that reduced since this was asked last, or of an earlier one.
    """
    ring = _ring
    if ring is None:
        return 0, 0, 0, 0
    ring.largest = 0
    return ring.public, ring.elements, ring.summed, ring.summing


def list_frames(site: int) -> list[list[object]]:
    """Return the frames of a site, by its number; none where they are not known."""
    return _ring.sites.stacks.get(site, []) if _ring is not None else []


def count_meetings() -> tuple[int, int]:
    """Return how many synchronization points this rank has passed: public functions; groups and wrappers made."""
    ring = _ring
    if ring is None:
        return 0, 0
    made = (count for key, count in list(ring.ordinals.items()) if isinstance(key, tuple) and key[0] in _MADE)
    return ring.public, sum(made)


def count_elements() -> tuple[int, int]:
    """Return how many elements of tensors they were given: collectives, and sends and receives."""
    return (_ring.elements, _ring.exchanged) if _ring is not None else (0, 0)
