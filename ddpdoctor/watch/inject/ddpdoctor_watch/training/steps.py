"""Steps of optimizers: which parameters and gradients a rank has, written down now and then.

Before step 1, 2, 4, 8 … of an optimizer, and before multiples of a distance that the cost decides, fingerprints
are taken of its parameters, of the buffers of the model and of its own state, and after it of the gradients that it
used. The numbers of the steps are the same on every rank, whatever each of them costs, so what ranks wrote down can be
compared. Nothing is asked of other ranks.

"Before the step" and not after the last one: where ranks average their parameters between steps, they are equal again
by then. Which modules run in the steps that are looked at comes from `modules`.
"""

from __future__ import annotations

import sys
import time

from ..core import budget, frames, journal, lifetime, progress, stopwatch, unseen
from ..models import ddp, joins, modules, prints, resumes
from . import clips, clocks, companions, reference, scaling, states, syncs
from .optimizers import LEAST_DISTANCE, SITE_FRAMES, Optimizer, is_whole, look_at, write_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

OPTIMIZERS = 8
"""Optimizers of a process that are looked at: some programs have one for each parameter."""
MOST_DISTANCE = 1 << 20
"""Steps between two looks that are no powers of two, at most."""
FEWEST_SECONDS = 5.0
"""Fewest seconds between two looks at steps that are no powers of two."""
LOOKS = 1500
"""Looks of a process after which only powers of two are left."""
LOWERED = 32
"""Times that a scheduler lowered the learning rate of an optimizer that are written down."""
_FREE = 4
"""Steps that are looked at whatever that costs."""
_NEAR = 6
"""Frames outwards from each step among which its line is looked for: torch's own wrappers are two or three."""
_SITES = 32
"""Lines that step one optimizer which are counted."""


class _State:
    """Optimizers and steps of this process."""

    def __init__(self) -> None:
        self.known: dict[int, Optimizer] = {}
        self.latest: Optimizer | None = None
        """The one that stepped last."""
        self.count = 0
        self.looks = 0
        self.finished = False


_state = _State()
_installed = False
_is_compiling: Any = bool
"""torch.compiler.is_compiling: true while the compiler goes through a function, and to it a constant."""


def install(ranks: int) -> bool:
    """Look at the steps of all optimizers from now on; called when a group of several ranks has been made.

    Args:
        ranks: How many there are.

    Returns:
        False where they are looked at already, or are not to be, or cannot.
    """
    global _installed, _is_compiling
    if _installed or budget.level == budget.OFF:
        return False
    _installed = True
    budget.ranks, budget.ready_ns = ranks, time.monotonic_ns()
    optim: Any = sys.modules.get("torch.optim.optimizer")
    before = getattr(optim, "register_optimizer_step_pre_hook", None)
    after = getattr(optim, "register_optimizer_step_post_hook", None)
    if before is None or after is None:
        journal.trouble("steps", "torch.optim has no global hooks of steps")
        return False
    _is_compiling = getattr(sys.modules["torch"].compiler, "is_compiling", bool)
    before(before_step)
    after(after_step)
    modules.open_window(modules.START)
    return True


def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Called by torch before each step; the compiler makes nothing of it, and leaves it out of the graph."""
    if not _is_compiling():
        _begin_step(optimizer, sys._getframe(1))


def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Called by torch after each step."""
    if not _is_compiling():
        _end_step(optimizer)


def note_lowered(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    """A scheduler that follows a metric has lowered the learning rate of an optimizer, mostly."""
    entry = _state.known.get(id(getattr(args[0], "optimizer", None))) if args else None
    if entry is not None and len(entry.lowered) < LOWERED:
        entry.lowered.append(entry.steps)
        entry.lowered_at = entry.lowered_at or frames.list_own(frame, SITE_FRAMES)


TRACED: tuple[Any, ...] = (before_step, after_step)
"""The only functions of ours that the compiler may go into: where it may not, it breaks the graph of a step."""


def _begin_step(optimizer: Any, frame: FrameType) -> None:
    """Take fingerprints of the parameters where it is time for it."""
    try:
        entry = _state.latest
        if entry is None or entry.ref() is not optimizer:
            entry = _state.known.get(id(optimizer))
            if entry is None or entry.ref() is not optimizer:
                entry = _meet(optimizer)
                if entry is None:
                    return
            _state.latest = entry
        clocks.end_step(entry.number)
        entry.steps = step = entry.steps + 1
        progress.steps += 1
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if type(rate) is float:  # a tensor may lie on a device, which would be waited for
                entry.rated += rate
        caller, (names, code, at, site) = frame.f_back, entry.latest
        if frame.f_globals is names and caller is not None and caller.f_lasti == at and caller.f_code is code:
            site[0] += 1
        else:
            _note_site(entry, frame)
        entry.shadows += joins.leaving
        entry.before = None  # the step before may have raised
        ddp.inside = 0  # also where a forward raised
        if entry.rounds.is_telling():
            entry.next = step  # ranks may have averaged what they have just now
        if step == entry.next or (budget.level == budget.DEEP and _state.looks < LOOKS):
            _take_before(entry, optimizer, frame)
            stopwatch.skip()
    except Exception as error:
        journal.failed("steps", error)


def _end_step(optimizer: Any) -> None:
    """Take fingerprints of the gradients that the step has used, and write down what was seen of it."""
    try:
        if not stopwatch.state.resting:
            stopwatch.enter(stopwatch.OTHER)
        entry = _state.latest
        if entry is None or entry.ref() is not optimizer:
            entry = _state.known.get(id(optimizer))
            if entry is None:
                return
        looked = entry.before is not None
        if looked:
            _take_after(entry)
        if entry.steps + 1 == entry.next or (budget.level == budget.DEEP and _state.looks < LOOKS):
            modules.open_window(entry.number)
        elif looked:
            modules.close_window(entry.number)
        elif not modules.is_open():
            return
        modules.close_window(modules.EVALUATION)
        stopwatch.skip()
    except Exception as error:
        journal.failed("steps", error)


def finish() -> bool:
    """End the watching of steps, once; return whether there are last events to be written."""
    if _state.finished or not (_state.known or progress.backwards):
        return False
    _state.finished = True
    if not _state.known and "torch._dynamo.convert_frame" in sys.modules:
        budget.abstain("no optimizer step was seen; steps compiled by torch.compile are not visible")
    return True


def note_end() -> None:
    """Write down how many steps were made and what this rank holds now."""
    for entry in list(_state.known.values()):
        optimizer = entry.ref()
        if optimizer is None:
            continue
        values = None
        if prints.explain_busy() is None and budget.affordable():
            look_at(entry, optimizer, None)
            if prints.is_settled(entry.tensors):
                values = prints.measure(entry.tensors)
        _write_step(entry, entry.steps + 1, values, None, final=True)
        entry.tensors = []
    journal.write(
        "watching",
        {
            "spent_ns": budget.spent_ns,
            "elapsed_ns": time.monotonic_ns() - budget.ready_ns,
            "level": budget.level,
        },
    )


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew; what hooks it has inherited stay."""
    global _state
    _state = _State()
    budget.restart()


@unseen.behind
def _meet(optimizer: Any) -> Optimizer | None:
    for key, entry in list(_state.known.items()):
        if entry.ref() is None:
            del _state.known[key]
    if _state.count >= OPTIMIZERS:
        budget.abstain(f"more than {OPTIMIZERS} optimizers: the others are not sampled")
        return None
    budget.begin()
    if resumes.is_waiting():
        resumes.note_first_step(optimizer, sys._getframe(1))
    _state.count += 1
    entry = _state.known[id(optimizer)] = Optimizer(optimizer, _state.count)
    return entry


def _note_site(entry: Optimizer, frame: FrameType) -> None:
    """Count a step at the line that makes it."""
    own = frames.find_near(frame, _NEAR)
    if own is None:
        return
    key = id(own.f_code), own.f_lasti
    site = entry.sites.get(key)
    if site is None:
        if len(entry.sites) >= _SITES:
            return
        site = entry.sites[key] = [0, frames.list_own(own, SITE_FRAMES), own.f_code]
    site[0] += 1
    if own is frame.f_back:
        entry.latest = frame.f_globals, own.f_code, own.f_lasti, site


@unseen.behind
def _take_before(entry: Optimizer, optimizer: Any, frame: FrameType) -> None:
    step = entry.steps
    entry.next = 1 << step.bit_length()  # the next power of two, unless the distance comes first
    following = (step // entry.distance + 1) * entry.distance
    if step >= LEAST_DISTANCE and _state.looks < LOOKS and budget.has_room(0.9):
        entry.next = min(entry.next, following)
    busy = prints.explain_busy()
    if busy is not None:
        budget.abstain(busy)
    free = reference.LAST if reference.enabled else _FREE
    if busy is None and step > free and not budget.affordable():
        busy = (
            f"sampling had taken more than {budget.SHARE:.0%} of the time: later steps were sampled "
            "less often"
        )
        budget.abstain(busy)
    if busy is not None:
        modules.close_window(entry.number)
        return
    began = budget.clock()
    look_at(entry, optimizer, frame)
    entry.before = prints.measure(entry.tensors)
    if reference.enabled:
        reference.note_before(entry)
    entry.averaged = entry.rounds.list_averaged()
    clipped, measured = clips.take(entry.tensors[: entry.parameters]), scaling.take(frame)
    entry.scaled = clipped if measured is None else (*measured, [])
    entry.reduced = scaling.take_elements(entry.tensors[: entry.parameters], entry.averaged)
    entry.states = None
    if is_whole(entry, step):
        entry.states = states.measure(optimizer, entry.tensors[: entry.parameters])
        companions.note(entry.number, step, [each.ref() for each in _state.known.values()])
    _spend(entry, began)


@unseen.behind
def _take_after(entry: Optimizer) -> None:
    began = budget.clock()
    values, entry.before = entry.before, None
    gradients: list[Any] = [
        tensor.grad if place < entry.parameters and tensor.is_leaf else None
        for place, tensor in enumerate(entry.tensors)
    ]
    _write_step(entry, entry.steps, values, gradients)
    if reference.enabled:
        reference.note_after(entry, gradients)
    entry.tensors = []  # not to be kept alive by us
    _spend(entry, began)


def _spend(entry: Optimizer, began: int) -> None:
    """Note what a look has cost; the next multiples are as far away as that asks for."""
    spent = budget.spend(began)
    if entry.steps < 2:
        return
    step_ns = max(1.0, (time.monotonic_ns() - budget.began_ns) / entry.steps)
    wanted = max(2 * spent / (budget.SHARE * step_ns), FEWEST_SECONDS * 1e9 / step_ns)
    while entry.distance < min(wanted, MOST_DISTANCE):
        entry.distance *= 2


def _write_step(
    entry: Optimizer,
    step: int,
    values: list[list[object] | None] | None,
    gradients: list[Any] | None,
    final: bool = False,
) -> None:
    _state.looks += 1
    if write_step(entry, step, values, gradients, final) and not final:
        syncs.note_look(entry.number, _state.count, step, progress.backwards)
