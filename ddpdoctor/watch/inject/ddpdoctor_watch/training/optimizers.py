"""What is remembered of each optimizer, and how a look at one of its steps is written down (`steps` says when)."""

from __future__ import annotations

import weakref

from ..calls import ring
from ..core import budget, describe, frames
from ..models import ddp, joins, layouts, modules, prints, tree
from . import losses, naming, rounds, states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ddpdoctor.facts import training_events, training_rows
else:
    from .. import training_rows

TENSORS = 3000
"""Tensors of one optimizer and its models that are looked at."""
LEAST_DISTANCE = 16
"""Steps between two looks that are no powers of two, at first."""
SITE_FRAMES = 8
UNKNOWN, REDUCED, IGNORED = 0, 1, 2
"""Whether DistributedDataParallel knows a tensor: not, as one whose gradient it reduces, as one it was told to
leave alone."""


class Optimizer:
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
        self.scaled: tuple[float, list[list[object]], list[int]] | None = None
        """Factor by which gradients were scaled before the step that is recorded, the frames where that happened, and
        the ranks that share them out, where they are parts of sums."""
        self.reduced: tuple[list[float], list[float]] | None = None
        """Elements of gradients behind the backward, and before the step, where the program reduces them itself."""
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
        self.lowered: list[int] = []
        """Steps after which a scheduler that follows a metric lowered the learning rate."""
        self.lowered_at: list[list[object]] = []
        """Frames of its step."""
        self.rated = 0.0
        """Sum of the learning rates of all steps: ranks whose rates ever differed have another."""


def look_at(entry: Optimizer, optimizer: Any, frame: FrameType | None) -> None:
    """Find the tensors of an optimizer and of the models that they belong to, and write down which they are."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]][:TENSORS]
    wrappers = ddp.list_wrappers()
    rows: list[training_rows.TensorRow] = []
    owners = {id(each): place for place, each in enumerate(parameters)}
    names: dict[int, tuple[str, int]] = {}
    extra: list[tuple[Any, str, int]] = []
    models: dict[int, str] = {}
    found = [(number, tree.find_model(wrapper)) for number, wrapper in wrappers]
    found += [(-1 - place, root) for place, root in enumerate(modules.list_roots())]
    gathered = layouts.find_gathered([model for _, model in found])
    for number, model in found:
        naming.name_tensors(model, number, owners, names, extra, models, gathered)
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
            "frames": frames.list_own(frame, SITE_FRAMES),
        },
    )


def write_step(
    entry: Optimizer,
    step: int,
    values: list[list[object] | None] | None,
    gradients: list[Any] | None,
    final: bool = False,
) -> bool:
    """Write what was seen of one step; every number for the first few and powers of two, else one for all.

    Args:
        entry: Of the optimizer.
        step: Its number.
        values: Fingerprints before the step, where they were taken.
        gradients: That it used.
        final: No step follows.

    Returns:
        Whether the numbers of each tensor were written.
    """
    whole = entry.written == entry.table and budget.has_room(1.0) if final else is_whole(entry, step)
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
        if entry.lowered:
            fields["lowered"], fields["lowered_at"] = entry.lowered, entry.lowered_at
    fields["wrappers"] = [
        training_rows.WrapperRow(number, synced, alone, last, modules.explain_bypass(number))
        for number, (synced, alone, last) in _count_forwards(entry)
    ]
    if whole and modules.has_seen():
        fields["idle"] = modules.list_idle(entry.tensors[: entry.parameters])
    if final:
        fields["sites"] = [[count, stack] for count, stack, _ in entry.sites.values()]
    fields["carried"], fields["exchanged"] = entry.rounds.tell()
    if entry.rounds.averagings:
        fields["averagings"], fields["averagings_at"] = entry.rounds.averagings, entry.rounds.place
    if not final:
        fields["weights"], fields["weighed"] = losses.take()
        fields["averaged"] = entry.averaged
        if entry.scaled is not None:
            fields["scaled"], fields["scaled_at"], fields["sharers"] = entry.scaled
        if entry.reduced is not None:
            fields["unreduced"], fields["reduced"] = entry.reduced
        if entry.rounds.covers_all():
            fields["reduced_at"] = ring.list_carrying()
            fields["all_to_all"] = ring.has_exchanged()
        fields["unsynced"] = layouts.count_unsynced(modules.list_roots(), entry.tensors)
    budget.write("step", fields)
    return whole


def is_whole(entry: Optimizer, step: int) -> bool:
    """Whether the numbers of each tensor are written down of a step."""
    return entry.written == entry.table and not step & (step - 1) and budget.has_room()


def _plain(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _count_forwards(entry: Optimizer) -> list[tuple[int, tuple[int, int, int]]]:
    """Return for each wrapper its forwards since the last look: reducing, not reducing, kind of the last one."""
    found = []
    for number, _ in ddp.list_wrappers():
        synced, alone, last = ddp.count_forwards(number)
        before = entry.last_seen.get(number, (0, 0, -1))
        entry.last_seen[number] = (synced, alone, last)
        found.append((number, (synced - before[0], alone - before[1], last)))
    return found
