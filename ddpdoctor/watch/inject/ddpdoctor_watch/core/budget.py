"""How much may be looked at: the level, the time that looking may take, and the bytes that it may write."""

from __future__ import annotations

import os
import time

from . import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import writer

OFF, LIGHT, NORMAL, DEEP = "off", "light", "normal", "deep"
LEVELS = (OFF, LIGHT, NORMAL, DEEP)
"""Nothing of steps and batches; no look at modules and batches; all at some steps; all at each step."""
SHARE = 0.01
"""Largest share of the time since the first step that looking may take."""
GRACE_NS = 200_000_000
"""That looking may take at first: the first steps tell most."""
DEVICE_GRACE_NS = 1_000_000_000
"""That it may take besides where tensors lie on a GPU: each kind of kernel is loaded when it runs first."""
JOB_BYTES = 45 << 20
"""That the looks of all ranks may write in an hour, and as much at once at the beginning, which tells most."""
FEWEST_RANKS, MOST_RANKS = 8, 256
"""Ranks that this is divided by, at least and at most: a rank of a small job needs no more than an eighth."""
_HOUR_NS = 3600 * 1_000_000_000

ready_ns = 0
"""When the group of all ranks was made: what looking took is told as a part of the time since then."""
began_ns = 0
"""When the first step was made."""
spent_ns = 0
waited_ns = 0
"""How long looks have waited for what the program itself had queued on a device, which no look costs."""
uses_device = False
written = 0
ranks = 1
"""Number of ranks of the job."""
_told: set[str] = set()
"""Why something was not looked at."""


def read_level() -> str:
    """Return the level that was asked for; one that nobody knows is the usual one."""
    told = os.environ.get("DDPDOCTOR_WATCH_LEVEL", NORMAL)
    return told if told in LEVELS else NORMAL


level = read_level()


def begin() -> None:
    """Count the time from now on, unless that was begun."""
    global began_ns
    if not began_ns:
        began_ns = time.monotonic_ns()


def restart() -> None:
    """Begin anew, in a forked child."""
    global began_ns, spent_ns, written
    began_ns = spent_ns = written = 0
    _told.clear()


def clock() -> int:
    """Return the time that a sample is charged by: it stops while the sample waits for the program's own work."""
    return time.monotonic_ns() - waited_ns


def wait_for(stream: Any) -> None:
    """Wait for what the program has queued on a stream of a device, where a look would wait for it anyway."""
    global waited_ns, uses_device
    uses_device = True
    began = time.monotonic_ns()
    stream.synchronize()
    waited_ns += time.monotonic_ns() - began


def spend(began: int) -> int:
    """Note what a look has cost that began then, by `clock`; return it."""
    global spent_ns
    took = clock() - began
    spent_ns += took
    return took


def spend_for(each: int, began: int, before: int) -> int:
    """Note what looks have cost of which only every so-manyth is timed; return what this one has cost.

    One that a full queue of a device held up stands out: the others are taken to cost what the cheaper of two did.

    Args:
        each: One of how many is timed.
        began: When this one began, by `clock`.
        before: What the one timed before has cost; 0 for the first.
    """
    global spent_ns
    took = clock() - began
    spent_ns += took + (each - 1) * min(took, before)
    return took


def affordable() -> bool:
    """Whether looking has taken little enough time so far."""
    if not began_ns or level == DEEP:
        return True
    grace_ns = GRACE_NS + DEVICE_GRACE_NS * uses_device
    return spent_ns <= SHARE * (time.monotonic_ns() - began_ns) + grace_ns


def has_room(share: float = 0.7) -> bool:
    """Whether a long line may be written: what is left of the bytes is for short ones, and for the last look."""
    hours = 1 + (time.monotonic_ns() - began_ns) / _HOUR_NS if began_ns else 1
    return written < share * hours * JOB_BYTES / min(max(ranks, FEWEST_RANKS), MOST_RANKS)


def _write(event: Any, fields: Any) -> int:
    """Write down what a look has found, and count its bytes."""
    global written
    size = journal.write(event, fields)
    written += size
    return size


write: writer.Write = _write


def abstain(reason: str) -> None:
    """Say once why something is not looked at."""
    if reason not in _told:
        _told.add(reason)
        journal.write("abstained", {"what": "replicas", "reason": reason})
