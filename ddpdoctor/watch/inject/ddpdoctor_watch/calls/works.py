"""Asynchronous work that nobody waits for.

A Work that a public function gives back to the user's own code is remembered by weak reference. Whoever asks it
anything (`ASKING`) looks its method up: a descriptor in the method's place notes that and gives the method itself, so
that nothing of ours is on the stack while it waits. What is collected, or still there at the end, without having been
asked was never waited for.
"""

from __future__ import annotations

import sys
from _weakref import ref

from ..core import describe, frames, journal, lifetime
from . import groups, returns, ring, sites

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

    WorkReference = ref[Any]
else:
    WorkReference = ref  # no subscript before Python 3.9

ASKING = (
    "wait", "synchronize", "block_current_stream", "is_completed", "is_success", "exception", "result",
    "get_future", "get_future_result", "boxed",
)  # fmt: skip
"""Methods of a Work after which its owner may know that it is done, or somebody else waits for it."""
SITES = 200
"""Call sites of asynchronous work that are counted."""
TAIL = 4096
"""Works in a row that a barrier right behind them may settle."""
LIVE, ASKED, DROPPED, SETTLED = 0, 1, 2, 3


class _Site:
    """What was begun at one place."""

    __slots__ = ("begun", "device", "dropped", "first", "frames", "group", "last", "op", "written")

    def __init__(self, op: str, device: object, group: object, frames: list[list[object]]) -> None:
        self.op = op
        self.device = device
        self.group = group
        self.frames = frames
        self.begun = 0
        self.dropped = 0
        self.first = 0
        self.last = 0
        self.written = 0


class _Reference(WorkReference):
    """A Work that nobody has asked yet."""

    __slots__ = ("group", "key", "number", "site", "state")
    group: int
    key: int
    number: int
    site: _Site
    state: int


_work_type: type | None = None
_live: dict[int, _Reference] = {}
_sites: dict[object, _Site] = {}
_tail: list[_Reference] = []
"""The newest works, begun one right after the other."""
_blind = False
"""The program has taken a method from the class: whom it asks with it cannot be seen."""
_batch: object = None
"""Code of batch_isend_irecv."""


class _Asking:
    """Stands in the place of a method of Work."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._get = type(real).__get__
        self.__doc__ = real.__doc__
        self.__name__ = getattr(real, "__name__", "")

    def __get__(self, work: Any, owner: Any = None) -> Any:
        if work is None:
            _note_taken(sys._getframe(1))
            return self._real
        if _live:
            found = _live.pop(id(work), None)
            if found is not None:
                found.state = ASKED
        return self._get(self._real, work, owner)


def install(module: ModuleType) -> None:
    """See works given out, asked and forgotten; called when torch.distributed.distributed_c10d has been executed."""
    global _work_type, _batch
    kind = getattr(module, "Work", None)
    if not isinstance(kind, type) or "wait" not in vars(kind):
        journal.trouble(
            "works", "torch.distributed has no Work.wait: work that is never waited for is not visible"
        )
        return
    for name in ASKING:
        real = vars(kind).get(name)
        if hasattr(type(real), "__get__"):
            setattr(kind, name, _Asking(real))
    _work_type = kind
    ring.settle = _settle
    _batch = getattr(getattr(module, "batch_isend_irecv", None), "__code__", None)
    for name in ("isend", "irecv"):
        func = getattr(module, name, None)
        if func is not None and hasattr(func, "__code__"):
            returns.see_returns(func, _note_returned)


def took(token: int, work: Any) -> None:
    """Remember what a call has given back, where it is the user's own to wait for.

    Args:
        token: of `ring.begin`.
        work: what the public function returns.
    """
    if token and type(work) is _work_type:
        _remember(token, work, sys._getframe(3))  # behind `wrapping.guard` and the decorator


def _note_returned(work: Any) -> Any:
    """Remember what isend or irecv gives back; called from its own frame."""
    try:
        token = ring.take_token()
        if token and type(work) is _work_type:
            frame = sys._getframe(2)
            _remember(token, work, frame.f_back if frame.f_code is _batch else frame)
    except Exception as error:
        journal.failed("works", error)
    return work


def _remember(token: int, work: Any, frame: FrameType | None) -> None:
    try:
        # What libraries, and torch itself, begin is theirs: they have ways to wait that cannot be seen here.
        if frame is None or not frames.is_own(frame) or groups.is_coalescing():
            return
        number, signature, place, group = ring.read_record(token)
        key = (signature, place, group)
        site = _sites.get(key)
        if site is None:
            if len(_sites) >= SITES:
                return
            op, device = ring.describe_signature(signature)
            lines = describe.list_stack(frame)[: sites.FRAMES]
            site = _sites[key] = _Site(op, device, ring.name_group(group), lines)
        site.begun += 1
        found = _Reference(work, _note_dropped)
        found.key, found.site, found.number, found.group, found.state = id(work), site, number, group, LIVE
        _live[found.key] = found
        if _tail and (_tail[-1].number + 1 != number or len(_tail) >= TAIL):
            del _tail[:]
        _tail.append(found)
        if site.dropped >= 2 * site.written + 1:
            _write(site, 0)
    except Exception as error:
        journal.failed("works", error)


def _note_dropped(found: _Reference) -> None:
    """A work was collected: called by the interpreter, anywhere."""
    if found.state == LIVE and _live.pop(found.key, None) is not None:
        found.state = DROPPED
        _count(found)


def _count(found: _Reference) -> None:
    site = found.site
    site.dropped += 1
    site.first = min(site.first or found.number, found.number)
    site.last = max(site.last, found.number)


def _settle(number: int, group: int) -> None:
    """A barrier begins that waits for all work of its group; right behind works it is how a program waits for them."""
    if not _tail or _tail[-1].number + 1 != number:
        return
    for found in _tail:
        if found.group != group:
            continue
        if found.state == DROPPED:
            found.site.dropped -= 1
        if found.state in (LIVE, DROPPED):
            _live.pop(found.key, None)
            found.state = SETTLED
    del _tail[:]


def _note_taken(frame: FrameType) -> None:
    global _blind
    try:
        _blind = _blind or frames.is_own(frame)
    except Exception as error:
        journal.failed("works", error)


def _write(site: _Site, kept: int) -> None:
    site.written = site.dropped
    journal.write(
        "work",
        {
            "op": site.op,
            "device": site.device,
            "group": site.group,
            "begun": site.begun,
            "dropped": site.dropped,
            "kept": kept,
            "first": site.first,
            "last": site.last,
            "calls": ring.count(),
            "frames": site.frames,
            "blind": _blind,
        },
    )


@lifetime.at(lifetime.ENDING, lifetime.LEAVING)
def note_end() -> None:
    """Write down what nobody has waited for."""
    kept: dict[int, int] = {}
    for found in list(_live.values()):
        site = found.site
        kept[id(site)] = kept.get(id(site), 0) + 1
        site.first = min(site.first or found.number, found.number)
        site.last = max(site.last, found.number)
    for site in list(_sites.values()):
        if site.dropped or site.written or id(site) in kept:
            _write(site, kept.get(id(site), 0))


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """What the parent has begun is not a forked child's to wait for."""
    for found in _live.values():
        found.state = SETTLED
    _live.clear()
    _sites.clear()
    del _tail[:]
