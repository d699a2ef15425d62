"""Steps of optimizers: which parameters and gradients a rank has, written down now and then.

Before step 1, 2, 4, 8 … of an optimizer, and before multiples of a distance that the cost decides, fingerprints
are taken of its parameters and of the buffers of the model, and after it of the gradients that it used. The
numbers of the steps are the same on every rank, whatever each of them costs, so what ranks wrote down can be
compared. Nothing is asked of other ranks.

"Before the step" and not after the last one: where ranks average their parameters between steps, they are equal again
by then. In the steps that are looked at (and no others) a hook on all modules tells which of them ran, and
whether within a forward of DistributedDataParallel.
"""

from __future__ import annotations

import sys
import time
import weakref

from . import budget, ddp, describe, frames, journal, prints, rounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

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
EVALUATION = -1
"""Among the numbers of optimizers that want to see modules: the beginning of an evaluation."""
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
        self.rounds = rounds.Rounds([each for group in optimizer.param_groups for each in group["params"]])
        self.last_seen: dict[int, tuple[int, int, int]] = {}


class _State:
    """Of this process."""

    def __init__(self) -> None:
        self.known: dict[int, _Optimizer] = {}
        self.count = 0
        self.looks = 0
        self.handle: Any = None
        self.wanted: set[int] = set()
        self.roots: list[Any] = []
        self.owners: dict[int, Any] = {}
        self.ran: set[int] = set()
        self.bypassed: dict[int, dict[str, object]] = {}
        self.finished = False
        self.told: set[str] = set()


_state = _State()
_installed = False


def install(ranks: int) -> None:
    """Look at the steps of all optimizers from now on; called when a group of several ranks has been made.

    Args:
        ranks: How many there are.
    """
    global _installed
    if _installed or budget.level == budget.OFF:
        return
    _installed = True
    budget.ranks, budget.ready_ns = ranks, time.monotonic_ns()
    optim: Any = sys.modules.get("torch.optim.optimizer")
    before = getattr(optim, "register_optimizer_step_pre_hook", None)
    after = getattr(optim, "register_optimizer_step_post_hook", None)
    if before is None or after is None:
        journal.trouble("steps", "torch.optim has no global hooks of steps")
        return
    before(before_step)
    after(after_step)
    from . import backwards, scalers

    backwards.install()
    scalers.install()
    open_window(0)


def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Take fingerprints of the parameters where it is time for it; torch calls this before each step."""
    try:
        entry = _state.known.get(id(optimizer))
        if entry is None or entry.ref() is not optimizer:
            entry = _meet(optimizer)
            if entry is None:
                return
        entry.steps = step = entry.steps + 1
        ddp.inside = 0  # also where a forward raised
        if entry.rounds.is_telling():
            entry.next = step  # ranks may have averaged what they have just now
        if step == entry.next or (budget.level == budget.DEEP and _state.looks < LOOKS):
            _take_before(entry, optimizer, sys._getframe(1))
    except Exception as error:
        journal.failed("steps", error)


def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Take fingerprints of the gradients that the step has used, and write down what was seen of it."""
    try:
        entry = _state.known.get(id(optimizer))
        if entry is None:
            return
        if entry.before is not None:
            _take_after(entry)
        if EVALUATION in _state.wanted:
            close_window(EVALUATION)
        if entry.steps + 1 == entry.next or (budget.level == budget.DEEP and _state.looks < LOOKS):
            open_window(entry.number)
    except Exception as error:
        journal.failed("steps", error)


def count_steps() -> int:
    """Return how many steps the optimizers of this process have made, those that are looked at."""
    return sum(entry.steps for entry in _state.known.values())


def note_end() -> None:
    """Write down how many steps were made and what this rank holds now: when groups are destroyed, or at the end."""
    from . import backwards, loaders, scalers

    loaders.note_end()
    if _state.finished or not (_state.known or backwards.count()):
        return
    _state.finished = True
    backwards.note_end()
    scalers.note_end()
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


def after_fork() -> None:
    """A forked child starts anew; what hooks it has inherited stay."""
    global _state
    handle, _state = _state.handle, _State()
    budget.restart()
    if handle is not None:
        handle.remove()
    if _installed:
        from . import backwards, evaluations, scalers, syncs

        for each in (backwards, evaluations, scalers, syncs):
            each.after_fork()


def note_bypass(wrapper_number: int, module: Any, frame: FrameType | None) -> None:
    """Remember that a part of a wrapped model ran in training, but not within the wrapper's forward."""
    if wrapper_number not in _state.bypassed:
        outside = frame
        while outside is not None and _is_of_model(outside, wrapper_number):
            outside = outside.f_back
        _state.bypassed[wrapper_number] = {
            "module": describe.name_type(type(module)),
            "frames": frames.list_own(outside, _SITE_FRAMES) or frames.list_own(frame, _SITE_FRAMES),
        }


def _is_of_model(frame: FrameType, wrapper_number: int) -> bool:
    """Whether a frame is torch's, or of a method of the model: what called that is what goes around the wrapper."""
    if frames.find_own(frame) is not frame:
        return True
    owner = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames[:1] else None
    return owner is not None and _state.owners.get(id(owner)) == wrapper_number


def _meet(optimizer: Any) -> _Optimizer | None:
    for key, entry in list(_state.known.items()):
        if entry.ref() is None:
            del _state.known[key]
    if _state.count >= OPTIMIZERS:
        _abstain(f"more than {OPTIMIZERS} optimizers: the others are not looked at")
        return None
    budget.begin()
    _state.count += 1
    entry = _state.known[id(optimizer)] = _Optimizer(optimizer, _state.count)
    return entry


def _abstain(reason: str) -> None:
    """Say once why something is not looked at."""
    if reason not in _state.told and len(_state.told) < 20:
        _state.told.add(reason)
        journal.write("abstained", {"what": "replicas", "reason": reason})


def _take_before(entry: _Optimizer, optimizer: Any, frame: FrameType) -> None:
    step = entry.steps
    entry.next = 1 << step.bit_length()  # the next power of two, unless the distance comes first
    following = (step // entry.distance + 1) * entry.distance
    if step >= LEAST_DISTANCE and _state.looks < LOOKS and budget.has_room(0.9):
        entry.next = min(entry.next, following)
    busy = prints.explain_busy()
    if busy is not None:
        _abstain(busy)
    if busy is None and step > _FREE and not budget.affordable():
        busy = (
            f"looks had taken more than {budget.SHARE:.0%} of the time: later steps were looked at less often"
        )
        _abstain(busy)
    if busy is not None:
        close_window(entry.number)
        return
    began = time.monotonic_ns()
    _look_at(entry, optimizer, frame)
    entry.before = prints.measure(entry.tensors)
    _spend(entry, began)


def _take_after(entry: _Optimizer) -> None:
    began = time.monotonic_ns()
    values, entry.before = entry.before, None
    gradients: list[Any] = [
        getattr(tensor, "grad", None) if place < entry.parameters else None
        for place, tensor in enumerate(entry.tensors)
    ]
    _write_step(entry, entry.steps, values, gradients)
    entry.tensors = []  # not to be kept alive by us
    _spend(entry, began)
    close_window(entry.number)


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
    rows: list[list[object]] = []
    owners = {id(each): place for place, each in enumerate(parameters)}
    names: dict[int, tuple[str, int]] = {}
    extra: list[tuple[Any, str, int]] = []
    models: dict[int, str] = {}
    for number, wrapper, _, _ in wrappers:
        _name(wrapper.module, number, owners, names, extra, models)
    for place, root in enumerate(_list_roots()):
        _name(root, -1 - place, owners, names, extra, models)
    known = dict.fromkeys((key for _, _, ids, _ in wrappers for key in ids), REDUCED)
    known.update((key, IGNORED) for _, _, _, ids in wrappers for key in ids)
    for place, each in enumerate(parameters):
        told = names.get(id(each))
        if told is not None:
            entry.named[id(each)] = (*told, known.get(id(each), UNKNOWN))
        # The model may be gone by now: at the end, in most scripts.
        name, model, knows = entry.named.get(id(each), (f"parameter {place} of the optimizer", 0, UNKNOWN))
        rows.append(_row(each, name, model, "parameter", knows))
    tensors = list(parameters)
    for tensor, name, model in extra[: max(0, TENSORS - len(tensors))]:
        rows.append(_row(tensor, name, model, "other", known.get(id(tensor), UNKNOWN)))
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
    _write(
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
            "wrappers": [ddp.describe_wrapper(number, wrapper) for number, wrapper, _, _ in wrappers],
            "frames": frames.list_own(frame, _SITE_FRAMES),
        },
    )


def _name(
    module: Any,
    number: int,
    owners: dict[int, int],
    names: dict[int, tuple[str, int]],
    extra: list[tuple[Any, str, int]],
    models: dict[int, str],
) -> None:
    """Name the tensors of one model, where the optimizer has any of its parameters."""
    own = [(name, each) for name, each in module.named_parameters()]
    if not any(id(each) in owners for _, each in own):
        return
    models[number] = describe.name_type(type(module))
    for name, each in own:
        if id(each) in owners:
            names.setdefault(id(each), (name, number))
        elif id(each) not in names:
            names[id(each)] = (name, number)
            extra.append((each, name, number))
    for name, each in module.named_buffers():
        if id(each) not in names:
            names[id(each)] = (name, number)
            extra.append((each, name, number))


def _row(tensor: Any, name: str, model: int, kind: str, known: int) -> list[object]:
    readable = prints.explain_unreadable(tensor)
    return [
        name[:200],
        kind,
        model,
        [int(size) for size in tensor.shape],
        str(tensor.dtype).rpartition(".")[2],
        bool(tensor.requires_grad),
        known,
        readable,
    ]


def _list_roots() -> list[Any]:
    found = [ref() for ref in _state.roots]
    return [each for each in found if each is not None]


def _write_step(
    entry: _Optimizer,
    step: int,
    values: list[list[object] | None] | None,
    gradients: list[Any] | None,
    final: bool = False,
) -> None:
    """Write what was seen of one step; every number for the first few and powers of two, else one for all."""
    _state.looks += 1
    whole = entry.written == entry.table and (
        budget.has_room(1.0) if final else not step & (step - 1) and budget.has_room()
    )
    fields: dict[str, object] = {
        "optimizer": entry.number,
        "table": entry.table,
        "step": step,
        "final": final,
        "count": entry.parameters,
    }
    if values is not None:
        fields["values"] = prints.fold(values[: entry.parameters])
        fields["others"] = prints.fold(values[entry.parameters :])
        if whole:
            fields["each"] = values
    if gradients is not None:
        measured = prints.measure(gradients[: entry.parameters])
        fields["gradients"] = prints.fold(measured)
        if whole:
            fields["each_gradient"] = measured
            fields["missing"] = [
                place for place, each in enumerate(gradients[: entry.parameters]) if each is None
            ]
        optimizer = entry.ref()
        if optimizer is not None:
            fields["rates"] = [_plain(group.get("lr")) for group in optimizer.param_groups[:64]]
    fields["wrappers"] = [
        [number, *counts, _state.bypassed.get(number)] for number, counts in _count_forwards(entry)
    ]
    if whole and _state.ran:
        fields["idle"] = _list_idle(entry)
    fields["carried"], fields["exchanged"] = entry.rounds.tell()
    _write("step", fields)
    if whole and not final:
        from . import backwards, syncs

        syncs.note_look(entry.number, _state.count, step, backwards.count())


def _write(event: str, fields: dict[str, object]) -> None:
    budget.note_written(journal.write(event, fields))


def _plain(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _count_forwards(entry: _Optimizer) -> list[tuple[int, list[int]]]:
    """Return for each wrapper its forwards since the last look: reducing, not reducing, kind of the last one."""
    found = []
    for number, _, _, _ in ddp.list_wrappers():
        synced, alone, last = ddp.forwards.get(number, (0, 0, -1))
        before = entry.last_seen.get(number, (0, 0, -1))
        entry.last_seen[number] = (synced, alone, last)
        found.append((number, [synced - before[0], alone - before[1], last]))
    return found


def _list_idle(entry: _Optimizer) -> list[int]:
    """Return the places of parameters whose module did not run since the window was opened."""
    idle = []
    owner_of: dict[int, int] = {}
    for _, wrapper, _, _ in ddp.list_wrappers():
        for module in wrapper.module.modules():
            for each in module.parameters(recurse=False):
                owner_of.setdefault(id(each), id(module))
    for place, tensor in enumerate(entry.tensors[: entry.parameters]):
        owner = owner_of.get(id(tensor))
        if owner is not None and owner not in _state.ran:
            idle.append(place)
    return idle


def open_window(number: int) -> None:
    """See which modules run until the step that is looked at, or whoever else wants to see them has seen enough."""
    if budget.level in (budget.OFF, budget.LIGHT) or ddp.is_compiling():
        return
    others = bool(_state.wanted)
    _state.wanted.add(number)
    if number == EVALUATION and others:
        return  # what they have seen so far is to stay
    _state.ran.clear()
    _state.bypassed.clear()
    _state.owners = {
        id(module): number
        for number, wrapper, _, _ in ddp.list_wrappers()
        for module in wrapper.module.modules()
    }
    if _state.handle is None:
        register = sys.modules["torch.nn.modules.module"].register_module_forward_pre_hook
        _state.handle = register(_note_module)


def close_window(number: int) -> None:
    """Look at modules no longer, where nobody else wants to."""
    _state.wanted.discard(number)
    _state.wanted.discard(0)
    if not _state.wanted and _state.handle is not None:
        _state.handle.remove()
        _state.handle = None


def _note_module(module: Any, given: Any) -> None:
    try:
        _state.ran.add(id(module))
        if ddp.inside or ddp.number(module):
            return
        number = _state.owners.get(id(module))
        if number is None:
            _meet_root(module, given)
        elif number < 0:
            _take_batch(module, given)
        elif not module.training:
            _take_evaluation(number, sys._getframe(1))
        elif sys.modules["torch"].is_grad_enabled():
            note_bypass(number, module, sys._getframe(1))
    except Exception as error:
        journal.failed("modules", error)


def _take_evaluation(number: int, frame: FrameType) -> None:
    from . import evaluations

    evaluations.take_module(number, frame)


def _take_batch(module: Any, given: Any) -> None:
    if not (module.training and sys.modules["torch"].is_grad_enabled()):
        return
    for place, ref in enumerate(_state.roots):
        if ref() is module:
            from . import batches

            batches.take_call(-1 - place, given, sys._getframe(2))


def _meet_root(module: Any, given: Any) -> None:
    """Take a module that is part of none that is known: a model of its own, or one that was wrapped since."""
    if type(module).__name__ == "OptimizedModule":
        _abstain("torch.compile: modules are not looked at")
        for number in list(_state.wanted):
            close_window(number)
        return
    for number, wrapper, _, _ in ddp.list_wrappers():
        for each in wrapper.module.modules():
            _state.owners.setdefault(id(each), number)
    if id(module) in _state.owners:
        _note_module(module, given)
        return
    for each in module.modules():
        _state.owners.setdefault(id(each), -1)
    if len(_state.roots) < OPTIMIZERS:
        _state.roots.append(weakref.ref(module))
        _take_batch(module, given)
