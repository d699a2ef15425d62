"""Phases of the training loop, and when a rank reaches a synchronization point: noted by the hook that sees one begin.

`clocks` sums the times up, step by step.
"""

from __future__ import annotations

import time
from _thread import get_ident

from . import lifetime

OTHER, DATA, STARTING, FORWARD, BACKWARD, OPTIMIZER, CALL = range(7)
"""Phases: the program's own Python; waiting for a batch; for the first one of workers that start; a wrapper's
forward; from the beginning of a backward on; a step of the optimizer; collectives of the program's own."""
PHASES = 7
MEETINGS = 4
"""Most meetings of one step that are kept: the first ones and the last."""
monotonic = time.monotonic_ns
"""The clock of all phases, in nanoseconds."""


class _State:
    """State of the stopwatch in this process: which thread is timed, its phase, and what the phases took."""

    def __init__(self) -> None:
        self.thread = 0
        """The one whose phases are noted; 0 until it has made a step, -1 while it rests."""
        self.resting = 0
        """The thread whose phases are noted, in a step of which nothing is noted; 0 in those that are measured."""
        self.phase = OTHER
        self.since = 0
        self.spent = [0] * PHASES
        """Nanoseconds by phase of the column that is being filled, the step that is being made included."""
        self.marking = True
        """The meetings of this step may be those that its column keeps."""
        self.marks: list[int] = []
        self.met = 0
        self.calling = -1
        """Phase that a collective of the program interrupted; -1 where none is being made."""
        self.left_backward = 0
        """When the last backward was over, or whatever followed it had begun."""


state = _State()


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global state
    state = _State()


def begin() -> bool:
    """Note phases of this thread from now on, unless those of one are noted; return whether they are this one's."""
    watch = state
    if not watch.thread:
        watch.thread, watch.since = get_ident(), monotonic()
    return watch.thread == get_ident()


def rest() -> None:
    """Note nothing of this thread until it wakes: it makes a step that is not measured."""
    watch = state
    watch.resting, watch.thread, watch.calling = watch.thread, -1, -1


def wake() -> None:
    """Note phases again, of the thread that rests."""
    watch = state
    if watch.resting == get_ident():
        watch.thread, watch.resting, watch.since = watch.resting, 0, monotonic()


def is_own() -> bool:
    """Whether this is the thread whose phases are noted in the steps that are measured."""
    return get_ident() in (state.thread, state.resting)


def is_watched() -> bool:
    """Whether phases of this thread are noted."""
    return state.thread == get_ident()


def enter(phase: int) -> int:
    """Note that a phase begins.

    Returns:
        The one that ends with it.
    """
    watch = state
    if watch.thread != get_ident():
        return OTHER
    now = monotonic()
    before = watch.phase
    watch.spent[before] += now - watch.since
    watch.since, watch.phase = now, phase
    if before == BACKWARD:
        watch.left_backward = now
    return before


def skip() -> None:
    """Leave out what lies between the last change of phase and now: a look of ours."""
    watch = state
    if watch.thread == get_ident():
        watch.since = monotonic()


def meet() -> None:
    """Note that a phase has just begun in which this rank may wait for others."""
    watch = state
    if not watch.marking or watch.thread != get_ident():
        return
    watch.met += 1
    marks = watch.marks
    if len(marks) < MEETINGS:
        marks.append(watch.since)
    else:
        marks[-1] = watch.since


def begin_call(waits: bool) -> None:
    """Note a collective of the program's own among all ranks.

    Args:
        waits: It does not come back before it is done.
    """
    watch = state
    if watch.thread != get_ident():
        return
    before = enter(CALL if waits else watch.phase)
    if watch.marking:
        meet()
    if waits:
        watch.calling = OTHER if before == BACKWARD else before


def end_call() -> None:
    """Note that a collective has come back."""
    watch = state
    if watch.calling >= 0 and watch.thread == get_ident():
        enter(watch.calling)
        watch.calling = -1
