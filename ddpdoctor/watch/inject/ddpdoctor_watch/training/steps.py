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
import weakref

from ..core import budget, describe, frames, journal, lifetime, progress, stopwatch, unseen
from ..models import ddp, joins, layouts, modules, prints, tree
from . import clocks, losses, naming, rounds, states, syncs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ddpdoctor.facts import training_events
else:
    from .. import training_events

OPTIMIZERS = 8
"""Optimizers of a process that are looked at: some programs have one for each parameter."""
TENSORS = 3000
"""Tensors of one optimizer and its models that are looked at."""
LEAST_DISTANCE, MOST_DISTANCE = 16, 1 << 20
"""Steps between two looks that are no powers of two."""
FEWEST_SECONDS = 5.0
"""Between two such looks."""
LOOKS = 1500
"""Looks of a process after which only powers of two are left."""
_FREE = 4
"""Steps that are looked at whatever that costs."""
_SITE_FRAMES = 8
_NEAR = 6
"""Frames outwards from each step among which its line is looked for: torch's own wrappers are two or three."""
_SITES = 32
"""Lines that step one optimizer which are counted."""
UNKNOWN, REDUCED, IGNORED = 0, 1, 2
"""Whether DistributedDataParallel knows a tensor: not, as one whose gradient it reduces, as one it was told to
leave alone."""


class _Optimizer:
    """What is remembered of one optimizer."""

    def __init__(self, optimizer: Any, number: int) -> None:
        self.ref = weakref.ref(optimizer)
        self.number = number
        self.steps = 0
        self.next = 1
        self.distance = LEAST_DISTANCE
        self.rows: list[tuple[int, int]] = []
        self.named: dict[int, tuple[str, int, int]] = {}
        self.table = self.written = 0
        """Number of the list of tensors, and of the last one that was written down."""
        self.tensors: list[Any] = []
        self.parameters = 0
        self.before: list[list[object] | None] | None = None
        self.averaged: list[list[int]] = []
        """Groups over which gradients were averaged by hand before the step that is looked at."""
        self.states: list[tuple[str, list[list[object] | None]]] | None = None
        self.rounds = rounds.Rounds([each for group in optimizer.param_groups for each in group["params"]])
        self.last_seen: dict[int, tuple[int, int, int]] = {}
        self.sites: dict[tuple[int, int], list[Any]] = {}
        """Line that steps it -> how often, its frames, and its code, so that the id stays its own."""
        self.latest: tuple[Any, Any, int, list[Any]] = (None, None, 0, [])
        """Names of the module that called us, code of its caller and where in it, and the entry of that line."""
        self.wrappers: set[int] = set()
        """Numbers of those whose parameters it steps."""
        self.shadows = 0
        """Steps that it made on behalf of other ranks, at the end of a Join."""
        self.rated = 0.0
        """Sum of the learning rates of all steps: ranks whose rates ever differed have another."""


class _State:
    """Of this process."""

    def __init__(self) -> None:
        self.known: dict[int, _Optimizer] = {}
        self.latest: _Optimizer | None = None
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
        budget.abstain("no step of an optimizer was seen: those that torch.compile has compiled are not")
    return True


def note_end() -> None:
    """Write down how many steps were made and what this rank holds now."""
    for entry in list(_state.known.values()):
        optimizer = entry.ref()
        if optimizer is None:
            continue
        values = None
        if prints.explain_busy() is None and budget.affordable():
            _look_at(entry, optimizer, None)
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
def _meet(optimizer: Any) -> _Optimizer | None:
    for key, entry in list(_state.known.items()):
        if entry.ref() is None:
            del _state.known[key]
    if _state.count >= OPTIMIZERS:
        budget.abstain(f"more than {OPTIMIZERS} optimizers: the others are not looked at")
        return None
    budget.begin()
    _state.count += 1
    entry = _state.known[id(optimizer)] = _Optimizer(optimizer, _state.count)
    return entry


def _note_site(entry: _Optimizer, frame: FrameType) -> None:
    """Count a step at the line that makes it."""
    own = frames.find_near(frame, _NEAR)
    if own is None:
        return
    key = id(own.f_code), own.f_lasti
    site = entry.sites.get(key)
    if site is None:
        if len(entry.sites) >= _SITES:
            return
        site = entry.sites[key] = [0, frames.list_own(own, _SITE_FRAMES), own.f_code]
    site[0] += 1
    if own is frame.f_back:
        entry.latest = frame.f_globals, own.f_code, own.f_lasti, site


@unseen.behind
def _take_before(entry: _Optimizer, optimizer: Any, frame: FrameType) -> None:
    step = entry.steps
    entry.next = 1 << step.bit_length()  # the next power of two, unless the distance comes first
    following = (step // entry.distance + 1) * entry.distance
    if step >= LEAST_DISTANCE and _state.looks < LOOKS and budget.has_room(0.9):
        entry.next = min(entry.next, following)
    busy = prints.explain_busy()
    if busy is not None:
        budget.abstain(busy)
    if busy is None and step > _FREE and not budget.affordable():
        busy = (
            f"looks had taken more than {budget.SHARE:.0%} of the time: later steps were looked at less often"
        )
        budget.abstain(busy)
    if busy is not None:
        modules.close_window(entry.number)
        return
    began = time.monotonic_ns()
    _look_at(entry, optimizer, frame)
    entry.before = prints.measure(entry.tensors)
    entry.averaged = entry.rounds.list_averaged()
    entry.states = None
    if _is_whole(entry, step):
        entry.states = states.measure(optimizer, entry.tensors[: entry.parameters])
    _spend(entry, began)


@unseen.behind
def _take_after(entry: _Optimizer) -> None:
    began = time.monotonic_ns()
    values, entry.before = entry.before, None
    gradients: list[Any] = [
        tensor.grad if place < entry.parameters and tensor.is_leaf else None
        for place, tensor in enumerate(entry.tensors)
    ]
    _write_step(entry, entry.steps, values, gradients)
    entry.tensors = []  # not to be kept alive by us
    _spend(entry, began)


def _spend(entry: _Optimizer, began: int) -> None:
    """Note what a look has cost; the next multiples are as far away as that asks for."""
    now = budget.spend(began)
    spent = now - began
    if entry.steps < 2:
        return
    step_ns = max(1.0, (now - budget.began_ns) / entry.steps)
    wanted = max(2 * spent / (budget.SHARE * step_ns), FEWEST_SECONDS * 1e9 / step_ns)
    while entry.distance < min(wanted, MOST_DISTANCE):
        entry.distance *= 2


def _look_at(entry: _Optimizer, optimizer: Any, frame: FrameType | None) -> None:
    """Find the tensors of an optimizer and of the models that they belong to, and write down which they are."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]][:TENSORS]
    wrappers = ddp.list_wrappers()
    rows: list[training_events.TensorRow] = []
    owners = {id(each): place for place, each in enumerate(parameters)}
    names: dict[int, tuple[str, int]] = {}
    extra: list[tuple[Any, str, int]] = []
    models: dict[int, str] = {}
    for number, wrapper in wrappers:
        naming.name_tensors(tree.find_model(wrapper), number, owners, names, extra, models)
    for place, root in enumerate(modules.list_roots()):
        naming.name_tensors(root, -1 - place, owners, names, extra, models)
    reduced, ignored = ddp.list_parameters()
    known = {**dict.fromkeys(reduced, REDUCED), **dict.fromkeys(ignored, IGNORED)}
    for place, each in enumerate(parameters):
        told = names.get(id(each))
        if told is not None:
            entry.named[id(each)] = (*told, known.get(id(each), UNKNOWN))
        # The model may be gone by now: at the end, in most scripts.
        name, model, knows = entry.named.get(id(each), (f"parameter {place} of the optimizer", 0, UNKNOWN))
        rows.append(naming.make_row(each, name, model, "parameter", knows))
    entry.wrappers.update(number for number in models if number > 0)
    tensors = list(parameters)
    for tensor, name, model in extra[: max(0, TENSORS - len(tensors))]:
        rows.append(naming.make_row(tensor, name, model, "other", known.get(id(tensor), UNKNOWN)))
        tensors.append(tensor)
    entry.tensors, entry.parameters = tensors, len(parameters)
    key = [(id(tensor), hash(tuple(map(str, row)))) for tensor, row in zip(tensors, rows)]
    if key == entry.rows:
        return
    entry.rows = key
    entry.table += 1
    if entry.table > 2 and not budget.has_room():
        return  # what this step holds of each tensor is not written either
    entry.written = entry.table
    budget.write(
        "tensors",
        {
            "optimizer": entry.number,
            "table": entry.table,
            "step": entry.steps,
            "class": describe.name_type(type(optimizer)),
            "models": {str(number): name for number, name in models.items()},
            "rows": rows,
            "left_out": max(
                0, sum(len(group["params"]) for group in optimizer.param_groups) - len(parameters)
            ),
            "wrappers": [ddp.describe_wrapper(number, wrapper) for number, wrapper in wrappers],
            "layout": layouts.describe(
                [tree.find_model(each) for _, each in wrappers] + modules.list_roots(), tensors
            ),
            "frames": frames.list_own(frame, _SITE_FRAMES),
        },
    )


def _write_step(
    entry: _Optimizer,
    step: int,
    values: list[list[object] | None] | None,
    gradients: list[Any] | None,
    final: bool = False,
) -> None:
    """Write what was seen of one step; every number for the first few and powers of two, else one for all."""
    _state.looks += 1
    whole = entry.written == entry.table and budget.has_room(1.0) if final else _is_whole(entry, step)
    fields: training_events.Step = {
        "optimizer": entry.number,
        "table": entry.table,
        "step": step,
        "final": final,
        "count": entry.parameters,
        "shadowed": max(0, joins.count(entry.wrappers) - entry.shadows),
    }
    if values is not None:
        fields["values"] = prints.fold(values[: entry.parameters])
        fields["others"] = prints.fold(values[entry.parameters :])
        if whole:
            fields["each"] = values
    if entry.states is not None and not final:
        fields["states"] = [[name, prints.fold(each)] for name, each in entry.states]
        fields["settings"] = states.list_settings(entry.ref())
        if whole:
            fields["each_state"] = [each for _, each in entry.states]
        entry.states = None
    if gradients is not None:
        measured = prints.measure(gradients[: entry.parameters])
        fields["gradients"] = prints.fold(measured)
        if whole:
            fields["each_gradient"] = measured
            fields["missing"] = [
                place for place, each in enumerate(gradients[: entry.parameters]) if each is None
            ]
    optimizer = entry.ref()
    if optimizer is not None and (final or gradients is not None):
        fields["rates"] = [_plain(group.get("lr")) for group in optimizer.param_groups[:64]]
        fields["rated"] = entry.rated
    fields["wrappers"] = [
        training_events.WrapperRow(number, synced, alone, last, modules.explain_bypass(number))
        for number, (synced, alone, last) in _count_forwards(entry)
    ]
    if whole and modules.has_seen():
        fields["idle"] = modules.list_idle(entry.tensors[: entry.parameters])
    if final:
        fields["sites"] = [[count, stack] for count, stack, _ in entry.sites.values()]
    fields["carried"], fields["exchanged"] = entry.rounds.tell()
    if not final:
        fields["weights"], fields["weighed"] = losses.take()
        fields["averaged"] = entry.averaged
        fields["unsynced"] = layouts.count_unsynced(modules.list_roots(), entry.tensors)
    budget.write("step", fields)
    if whole and not final:
        syncs.note_look(entry.number, _state.count, step, progress.backwards)


def _is_whole(entry: _Optimizer, step: int) -> bool:
    """Whether the numbers of each tensor are written down of a step."""
    return entry.written == entry.table and not step & (step - 1) and budget.has_room()


def _plain(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _count_forwards(entry: _Optimizer) -> list[tuple[int, tuple[int, int, int]]]:
    """Return for each wrapper its forwards since the last look: reducing, not reducing, kind of the last one."""
    found = []
    for number, _ in ddp.list_wrappers():
        synced, alone, last = ddp.count_forwards(number)
        before = entry.last_seen.get(number, (0, 0, -1))
        entry.last_seen[number] = (synced, alone, last)
        found.append((number, (synced - before[0], alone - before[1], last)))
    return found
