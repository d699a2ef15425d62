"""Where the time of steps goes, and when a rank comes to where it meets the others: clocks at hooks that are there.

A step is what lies between two steps of one optimizer. Its time is parted into phases (`stopwatch`). A
*meeting* is where a rank may have to wait for others: a forward that broadcasts buffers, the first backward after a
forward that reduces, a collective of the program's own. Ranks that meet come there equally often, so what they wrote
down can be compared; how long a backward takes cannot, for who is early waits there for who is late.

Steps are kept in a bounded number of columns, which grow wider: sums of the phases, and of one step the meetings.

To measure a step costs some 0.1 ms. Where that is more than 1 % of it, one step of each two, four, eight or sixteen
is measured once the job has run for a while, and counts for all of them. Which one comes from its number alone, so that
ranks measure the same ones.
"""

from __future__ import annotations

import sys
import time
from _thread import get_ident
from itertools import repeat

from ..calls import groups, ring
from ..core import budget, journal, lifetime, stopwatch, unseen, wrapping
from ..core.stopwatch import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, PHASES, STARTING, enter
from ..models import ddp, tree
from . import waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddpdoctor.facts.training_events import Times
    from ddpdoctor.facts.training_rows import Column, LookRow, choose_sampled
else:
    from ..training_rows import Column, LookRow, choose_sampled

WARM_UP = 3
"""Steps that are not counted: buckets are built anew after the first, allocators and caches fill."""
COLUMNS = 64
LOOKS = 64
"""Iterations of which DistributedDataParallel's own times are kept."""
EARLY, EACH = 10, 100
"""It measures the iterations up to this one, and each of so many (torch/csrc/distributed/c10d/logger.cpp)."""
_ALL_UP_TO = 1024
"""Steps that are measured however short they are."""
_LONG_NS = 20_000_000
"""Steps that are as long are all measured."""
_MOST_APART = 16
"""Steps of which one is measured, at most."""
_FIRST_WRITE = 16
_LATEST_NS = 300_000_000_000
"""After which what is known is written at the latest, in a job whose steps are long."""
_PATIENCE = 4
"""Steps of other optimizers in a row after which the one that has ended the steps so far does so no longer."""


class _State:
    """State of the step clock in this process."""

    def __init__(self) -> None:
        self.whole = [0] * PHASES
        """What phases took of the column that is being filled, as its last step ended."""
        self.reduced = 0
        self.closer = 0
        """Number of the optimizer whose steps are counted."""
        self.others = 0
        self.steps = -WARM_UP
        self.each = 1
        """One step of so many is measured, and counts for all of them."""
        self.chosen = 0
        """The one of those that are made now."""
        self.block = 0
        """When the last multiple of the largest distance was made."""
        self.width = 1
        self.columns: list[_Steps] = []
        self.column: _Steps | None = None
        """The one that is being filled; None where the next step begins one."""
        self.loaders: dict[int, int] = {}
        """Number of a place -> time that was spent waiting for its batches."""
        self.looks: list[LookRow] = []
        """DistributedDataParallel's own times of iterations, in nanoseconds."""
        self.sparse = 1
        self.device = ""
        self.group: list[int] | None = None
        self.bytes = 0
        self.began_backward = 0
        self.written = 0
        self.next_write = _FIRST_WRITE


class _Steps:
    """Steps in a row."""

    def __init__(self, first: int, width: int, spent: list[int]) -> None:
        self.first = first
        self.count = 0
        self.reduced = 0
        self.spent = spent
        self.sampled = choose_sampled(first, width)
        self.marks: list[int] = []
        self.met = 0

    def join(self, other: _Steps, sampled: int) -> None:
        """Take the column behind this one in."""
        self.count += other.count
        self.reduced += other.reduced
        self.spent = [one + more for one, more in zip(self.spent, other.spent)]
        if other.sampled == sampled:
            self.marks, self.met = other.marks, other.met
        self.sampled = sampled


_state = _State()


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _state
    _state = _State()


def begin_backward() -> None:
    """Note that a backward begins."""
    watch = stopwatch.state
    if not stopwatch.is_watched():
        return
    state = _state
    enter(BACKWARD)
    state.began_backward = watch.since
    if ddp.reducing:
        ddp.reducing = False
        state.reduced += 1
        if watch.marking:
            stopwatch.meet()


def end_step(optimizer: int) -> None:
    """Note that the step of an optimizer begins, which ends what we call a step.

    Args:
        optimizer: Its number.
    """
    state, watch = _state, stopwatch.state
    if watch.resting and optimizer == state.closer and _end_unmeasured(state, watch.resting):
        return
    if optimizer != state.closer:
        state.others += 1
        if state.closer and state.others < _PATIENCE:
            enter(OPTIMIZER)
            return
        state.closer = optimizer
    state.others = 0
    rested = watch.resting
    if rested:
        stopwatch.wake()
    if not stopwatch.begin():
        return
    enter(OPTIMIZER)
    state.steps = step = state.steps + 1
    if step <= 0:
        watch.spent = [0] * PHASES
    else:
        column = state.column or _begin_column(state, step)
        column.count = count = column.count + 1
        if not rested:
            each = state.each
            column.reduced += state.reduced * each
            if each > 1:
                watch.spent[:] = [was + each * (now - was) for was, now in zip(state.whole, watch.spent)]
            if step == column.sampled:
                column.marks, column.met = watch.marks, watch.met
            state.whole = watch.spent[:]
        if count >= state.width:
            state.column = None
            watch.spent = [0] * PHASES
            state.whole = watch.spent[:]
        watch.marking = count >= state.width or step + 1 == column.sampled
        if step >= state.next_write or watch.since - state.written > _LATEST_NS:
            write()
    if watch.met:
        watch.marks = []
        watch.met = 0
    state.reduced = 0
    if step >= _ALL_UP_TO:
        _choose(state, step)
    if waits.places:
        waits.turn(step, not watch.resting)


def _end_unmeasured(state: _State, thread: int) -> bool:
    """Note that a step ends which was not measured, where the next one is not to be either.

    Args:
        state: Ours.
        thread: The one that makes the steps.

    Returns:
        False where more is to be done than to count it.
    """
    step, column = state.steps + 1, state.column
    if (
        step % state.each == 0  # from here on another one is chosen
        or step + 1 == state.chosen
        or step >= state.next_write
        or column is None
        or column.count + 1 >= state.width
        or thread != get_ident()
    ):
        return False
    state.steps = step
    column.count += 1
    state.others = state.reduced = 0
    return True


def _choose(state: _State, step: int) -> None:
    """Rest until the next step that is to be measured.

    Args:
        state: Ours.
        step: The one that has just ended.
    """
    if not step % _MOST_APART:
        now = stopwatch.state.since
        took = (now - state.block) // _MOST_APART
        state.each = 1
        while state.block and state.each < _MOST_APART and took * state.each < _LONG_NS:
            state.each *= 2
        if budget.level == budget.DEEP:
            state.each = 1
        state.block = now
    if state.each > 1:
        if not step % state.each:
            state.chosen = choose_sampled(step + 1, state.each)
        if step + 1 != state.chosen:
            stopwatch.rest()


def _begin_column(state: _State, step: int) -> _Steps:
    """Begin a column with a step that has just ended."""
    if len(state.columns) >= COLUMNS:
        _halve(state)
    column = state.column = _Steps(step, state.width, stopwatch.state.spent)
    state.columns.append(column)
    return column


def _halve(state: _State) -> None:
    """Make one column of each two."""
    state.width *= 2
    columns = state.columns
    for one, other in zip(columns[::2], columns[1::2]):
        one.join(other, choose_sampled(one.first, state.width))
    del columns[1::2]


def note_forward(wrapper: Any, count: int) -> None:
    """Read what a wrapper has measured of its last iteration, where it has; called in a forward of it.

    Args:
        wrapper: It.
        count: Of its forwards with a reduction, without the one that begins.
    """
    state = _state
    if count <= WARM_UP or (count > EARLY and count % EACH) or not stopwatch.is_own():
        return
    logged = getattr(getattr(wrapper, "logger", None), "_get_ddp_logging_data", None)
    if logged is None:
        return
    numbers = logged().ints_map
    size = int(numbers.get("total_parameter_size_bytes", 0))
    iteration = int(numbers.get("iteration", 0))
    if size < state.bytes or iteration <= WARM_UP:
        return  # of a smaller model beside it
    if size > state.bytes:
        state.bytes, state.looks, state.sparse = size, [], 1
        _describe(state, wrapper)
    if not state.looks or state.looks[-1].iteration < iteration:
        _take_times(state, iteration, numbers, iteration == count)


@unseen.behind
def _describe(state: _State, wrapper: Any) -> None:
    named = tree.list_parameters(tree.find_model(wrapper))
    state.device = str(named[0][1].device.type) if named else ""
    members = groups.list_members(getattr(wrapper, "process_group", None))
    whole = members is None or len(members) >= budget.ranks
    state.group = None if whole or members is None else list(members[:256])


def _take_times(state: _State, iteration: int, numbers: Any, latest: bool) -> None:
    took = [
        int(numbers.get(f"backward_{name}_time", -1)) for name in ("compute", "comm", "compute_comm_overlap")
    ]
    ends = [
        int(numbers.get(f"backward_{name}", 0))
        for name in ("compute_time_start", "comm_time_start", "compute_time_end", "comm_time_end")
    ]
    if min(took) < 0 or took[1] < took[2]:
        return
    after, left = -1, stopwatch.state.left_backward
    if latest and state.device == "cpu" and state.began_backward and min(ends) > 0:
        over = ends[3] - (
            time.time_ns() - stopwatch.monotonic()
        )  # by the clock that phases are measured with
        if state.began_backward < over <= left:
            after = left - over
    first = ends[1] - ends[0] if min(ends) > 0 else -1
    if iteration <= EARLY or iteration // EACH % state.sparse == 0:
        state.looks.append(LookRow(iteration, took[0], first, took[1] - took[2], took[1], after))
    if len(state.looks) > LOOKS:
        state.sparse *= 2
        state.looks = [
            look
            for look in state.looks
            if look.iteration <= EARLY or look.iteration // EACH % state.sparse == 0
        ]


def write() -> None:
    """Write down what is known, instead of what was written before."""
    state = _state
    if state.steps <= 0 or not state.columns:
        return
    state.written = stopwatch.state.since
    columns = [(each, each.spent) for each in state.columns]
    if state.column is not None:
        columns[-1] = state.column, state.whole  # without the step that is being made
    while state.next_write <= state.steps:
        state.next_write *= 2
    if not budget.has_room():
        return
    calls, rows, frames = ring.find_routed()
    times: Times = {
        "steps": state.steps,
        "optimizer": state.closer,
        "width": state.width,
        "bytes": state.bytes,
        "device": state.device,
        "members": state.group,
        "loaders": [[place, took // 1000] for place, took in state.loaders.items()][:16],
        "routings": calls,
        "routed": rows,
        "frames": frames,
        # In microseconds.
        "columns": [
            Column(
                each.first, each.count, each.reduced, tuple(took // 1000 for took in spent),
                each.sampled, each.met, tuple(mark // 1000 for mark in each.marks),
            ).to_row()
            for each, spent in columns
        ],
        "looks": [
            LookRow(look.iteration, *(took // 1000 if took >= 0 else -1 for took in look[1:]))
            for look in state.looks
        ],
    }  # fmt: skip
    times.update(waits.describe())
    budget.write("times", times)


def time_batches(iterator: Any, place: int, workers: bool, length: int | None) -> None:
    """Measure how long a DataLoader's iterator is waited for.

    Its method is put behind functions that are written in C: no frame of ours is on the stack while it runs, and it
    is not kept alive.

    Args:
        iterator: Of a DataLoader, being made.
        place: Number of the place where it is iterated.
        workers: It has processes that start with it.
        length: Batches that it will give; None where that is not known.
    """
    functools: Any = sys.modules.get("functools")
    weakref: Any = sys.modules.get("weakref")
    real = type(iterator)._next_data
    ref = weakref.ref(iterator)
    before = -1
    gone = object()

    def begin(_: Any) -> Any:
        nonlocal before
        each = ref()
        before = -1
        try:
            given = getattr(each, "_num_yielded", 1)
            if length is None or given < length:
                before = enter(STARTING if workers and not given else DATA)
        except Exception as error:
            journal.failed("clocks", error)
        return each

    def end(batch: Any) -> Any:
        try:
            state, since = _state, stopwatch.state.since
            if before >= 0 and enter(before if before in (FORWARD, OPTIMIZER) else OTHER) == DATA:
                took = state.each * (stopwatch.state.since - since)
                state.loaders[place] = state.loaders.get(place, 0) + took
        except Exception as error:
            journal.failed("clocks", error)
        return iter(
            () if batch is gone else (batch,)
        )  # of which the next is asked: none raises StopIteration

    for function in (begin, end):
        wrapping.skip_code(function.__code__)
    batches = map(real, map(begin, repeat(None)))
    iterator._next_data = functools.partial(
        next, map(next, map(end, map(next, repeat(batches), repeat(gone))))
    )
