"""How a rank scales the gradients of a sharded model between the backward and the step: clipping, mostly.

The norm that decides how much gradients are clipped is one of all shards. Where a rank takes that of its own, ranks
scale the shards of one gradient differently. So in the steps that are looked at a few gradients are measured when a
backward has ended, and once more before the step. Only of models that ranks hold parts of, without
DistributedDataParallel: of a plain job nothing is measured.

Where the program reduces the gradients itself, a few of their elements are read at both times: what is stepped with has
to be the mean over the ranks of what each rank had.
"""

from __future__ import annotations

import linecache
import re
import sys
import weakref

from ..core import frames, journal, lifetime, unseen
from ..models import ddp, layouts, modules, prints, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

PROBES = 6
"""Gradients that are measured, spread over the parameters."""
LARGEST = 1 << 22
"""Elements of a rank's part of one."""
ELEMENTS = 4
"""Elements of each gradient that are read, spread over it."""
UNIFORM = 0.01
"""Relative difference up to which all that was measured is scaled alike: clipping each element is no scaling."""
_FRAMES = 8
_LINES = 60
"""Most source lines between a backward and its step that are searched for the one which scales."""
_SCALES = re.compile(r"clip|norm|scale|grad\w*\s*(\*|/)=|\b(mul|div)_\b")
_PASSED_OVER = re.compile(r"^\s*(#|(assert|print|return)\b)|zero_grad|\.step\(")


class _State:
    """Sharded models of this process, and the gradients that the last backward left."""

    def __init__(self) -> None:
        self.sharded: dict[int, tuple[Any, bool]] = {}
        """Models (weakly) by their id, and whether ranks hold parts of them."""
        self.measured: list[tuple[Any, float, float]] = []
        """Parameters (weakly), norm and largest element of their gradients as the last backward left them."""
        self.by_hand = False
        """Whether the program carried all gradients by its own collectives before the last step that was looked at."""
        self.elements: list[tuple[Any, list[float]]] = []
        """Parameters (weakly), and elements of their gradients as the last backward left them."""
        self.stack: list[list[object]] = []
        """Frames of the call of that backward, innermost first."""


_state = _State()


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _state
    _state = _State()


def note_backward(loss: Any, frame: FrameType) -> None:
    """Measure gradients once a backward has ended, in a step in which modules are looked at.

    Args:
        loss: Whose backward begins.
        frame: Of torch.autograd.backward.
    """
    if ddp.remembered:
        return
    roots = modules.list_roots()
    models = [each for each in roots if _is_sharded(each)]
    node: Any = getattr(loss, "grad_fn", None)
    if not (models or _state.by_hand) or not hasattr(node, "register_prehook"):
        return
    _state.elements = []
    _state.measured, _state.stack = [], frames.list_own(frame, _FRAMES)
    engine: Any = sys.modules["torch"].autograd.Variable._execution_engine
    handle: Any = None

    def end() -> None:
        try:
            if models:
                _measure_all(models)
            else:
                _read_all(roots)
        except Exception as error:
            journal.failed("scaling", error)

    def begin(_: Any) -> None:
        # What sharding does at the end of a backward is queued after this hook: ours waits for that as well.
        try:
            handle.remove()
            engine.queue_callback(lambda: engine.queue_callback(end))
        except Exception as error:
            journal.failed("scaling", error)

    handle = node.register_prehook(begin)


def take(frame: FrameType | None) -> tuple[float, list[list[object]]] | None:
    """Return by what gradients were scaled since the last backward, and where.

    Args:
        frame: Of the optimizer's step.

    Returns:
        None where they were not measured, or are not scaled alike.
    """
    measured, _state.measured = _state.measured, []
    if not measured:
        return None
    ratios = _compare(measured)
    if not ratios or max(ratios) - min(ratios) > UNIFORM * max(ratios):
        return None
    factor = sorted(ratios)[len(ratios) // 2]
    stack = frames.list_own(frame, _FRAMES)
    return float(f"{factor:.6g}"), find_scaling(_state.stack, stack)


def take_elements(parameters: list[Any], averaged: list[list[int]]) -> tuple[list[float], list[float]] | None:
    """Return elements of gradients as the last backward left them, and as they are now.

    Args:
        parameters: Of the optimizer that is about to step.
        averaged: Groups over which the program carried all gradients in between.

    Returns:
        None where they were not read, or that is not one group.
    """
    elements, _state.elements = _state.elements, []
    _state.by_hand = len(averaged) == 1
    if not _state.by_hand or not elements:
        return None
    own = {id(each) for each in parameters}
    before: list[float] = []
    after: list[float] = []
    for reference, values in elements:
        parameter = reference()
        if parameter is not None and id(parameter) in own and parameter.grad is not None:
            before += values
            after += _read(parameter.grad)
    return (before, after) if before and len(before) == len(after) else None


def find_scaling(backward: list[list[object]], step: list[list[object]]) -> list[list[object]]:
    """Return the stack of the line between a backward and a step that looks as if it scaled gradients.

    Args:
        backward: Stack of its call: file, line and function of each frame, innermost first.
        step: That of the step; returned as it is where no such line is found.
    """
    for place, (file, last, function) in enumerate(step):
        before = [int(str(row[1])) for row in backward if row[0] == file and row[2] == function]
        first, end = max(before, default=0), int(str(last))
        if not 0 < first < end <= first + _LINES:
            continue
        for line in range(first + 1, end):
            text = linecache.getline(str(file), line)
            if _SCALES.search(text) and not _PASSED_OVER.search(text):
                return [[file, line, function], *step[place + 1 :]]
    return step


@unseen.behind
def _measure_all(models: list[Any]) -> None:
    if prints.explain_busy() is not None:
        return
    for each in _choose(models):
        _state.measured.append((weakref.ref(each), *_measure(each.grad)))


def _choose(models: list[Any]) -> list[Any]:
    """Return parameters whose gradients are looked at, spread over those of some models."""
    found = [each for model in models for _, each in tree.list_parameters(model) if each.is_leaf]
    fitting = [each for each in found if each.grad is not None and _is_measurable(each.grad)]
    stride = max(1, len(fitting) // PROBES)
    return fitting[::stride][:PROBES]


@unseen.behind
def _read_all(models: list[Any]) -> None:
    if prints.explain_busy() is not None:
        return
    for each in _choose(models):
        _state.elements.append((weakref.ref(each), _read(each.grad)))


def _read(gradient: Any) -> list[float]:
    flat = gradient.detach().reshape(-1)
    last = int(flat.numel()) - 1
    places = sorted({last * place // (ELEMENTS - 1) for place in range(ELEMENTS)})
    return [float(f"{value:.9g}") for value in flat[places].double().tolist()]


@unseen.behind
def _compare(measured: list[tuple[Any, float, float]]) -> list[float]:
    """Return the factors of norms and of largest elements; none where a gradient is gone or not finite."""
    ratios: list[float] = []
    for reference, *before in measured:
        parameter = reference()
        if parameter is None or parameter.grad is None:
            return []
        after = _measure(parameter.grad)
        ratios += [now / then for now, then in zip(after, before) if then > 0]
    return ratios if all(0 < ratio < float("inf") for ratio in ratios) else []


def _is_measurable(gradient: Any) -> bool:
    if prints.explain_unreadable(gradient) is not None:
        return False
    return bool(gradient.is_floating_point()) and 0 < int(prints.find_local(gradient).numel()) <= LARGEST


def _measure(gradient: Any) -> tuple[float, float]:
    local = prints.find_local(gradient).detach().float()
    return float(local.norm()), float(local.abs().max())


@unseen.behind
def _is_sharded(model: Any) -> bool:
    known = _state.sharded.get(id(model))
    if known is None or known[0]() is not model:
        known = _state.sharded[id(model)] = weakref.ref(model), layouts.is_sharded(model)
    return known[1]
