"""DDP005: a loss is made by the model inside of the wrapper."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_calls, name_last, names_in
from ddpdoctor.source.training.graphs import Slice, loss_of, slice_of
from ddpdoctor.source.training.prepared import may_be_of_others, prepares_of
from ddpdoctor.source.training.train_loops import HOLDERS, find_backwards, is_backward
from ddpdoctor.source.training.wraps import goes_through_module, is_certain, reduces_by_hand, wraps_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import read_line
from ddpdoctor_checks.lint.wrapping.module_called import find_in_loops, is_without_gradients

PASSIVE = frozenset({"parameters", "named_parameters", "buffers", "state_dict", "load_state_dict", "train", "eval",
                     "to", "zero_grad", "modules", "named_modules", "children", "requires_grad_", "cuda"})  # fmt: skip
"""Methods of a module that compute nothing of it."""


@lint_rule("bypassed", reads="files")
def find_bypassed(files: Files) -> Iterator[SourceFact]:
    """Yield where a loss is made by the model inside of a wrapper, and the wrapper has no part in it (``bypassed``).

    way: ``module`` (through ``.module``), ``bare`` (through the variable that was wrapped), or ``loop`` (through
    ``.module``, in a loop that never calls the wrapper); of what Accelerate prepared ``unwrapped`` or ``given``
    (through a variable that holds the model without a wrapper).
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for call, scope in find_backwards(kinds).items():
        loss = loss_of(call)
        if loss is None:
            continue
        behind = slice_of(loss, scope, kinds)
        wrapped = list(_find_wrapped(behind, kinds))
        if not behind.complete or _is_cleared(call, scope, kinds) or _is_joined(call, scope, kinds):
            continue
        for inner, home in behind.calls:
            if not all(at is home and kinds.flow(home).sets_apart(inner, other) for other, at in wrapped):
                continue  # or another step of the same run goes through the wrapper
            way = _find_way(inner, home, kinds)
            if way is None or inner in told or is_without_gradients(inner, home):
                continue
            if not reduces_by_hand(home, kinds):
                told.add(inner)
                noticed = RelatedPlace("noticed", scope.place(call))
                place = home.place(inner)
                prepared = way in ("unwrapped", "given")
                if prepared and may_be_of_others(home, kinds):
                    continue
                certain = not prepared and is_certain(inner, home, kinds) and is_certain(call, scope, kinds)
                yield SourceFact("bypassed", place, (noticed,), {"way": way}, certain=certain)
    yield from find_in_loops(kinds, told)


def _is_cleared(backward: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether gradients are cleared after a backward before any step: it is for those of its inputs."""
    flow = kinds.flow(scope)
    own = flow.spot(backward)
    for call in find_calls(scope):
        spot = flow.spot(call)
        if (
            own is None
            or spot is None
            or spot.number <= own.number
            or not isinstance(call.func, ast.Attribute)
        ):
            continue
        if call.func.attr == "zero_grad":
            return spot.blocks == own.blocks
        if call.func.attr == "step":
            return False
    return False


def _is_joined(backward: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether another backward of the same round goes through a wrapper: it reduces what was added up before."""
    flow = kinds.flow(scope)
    own = flow.spot(backward)
    for call in find_calls(scope):
        spot = flow.spot(call)
        loss = loss_of(call) if is_backward(call) and call is not backward else None
        if loss is None or own is None or spot is None or own.loops != spot.loops:
            continue
        between = range(min(own.number, spot.number), max(own.number, spot.number))
        if any(
            _steps(each) for each in find_calls(scope) if (at := flow.spot(each)) and at.number in between
        ):
            continue
        if any(_find_wrapped(slice_of(loss, scope, kinds), kinds)):
            return True
    return False


def _steps(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "step"


def _find_wrapped(behind: Slice, kinds: Kinds) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield where a wrapped model is called behind a loss, or may be: given to what is not among the files."""
    for call, scope in behind.calls:
        used: list[ast.expr] = [call.func] if isinstance(call.func, HOLDERS) else []
        if kinds.files.function(call.func, scope) is None and name_last(call.func) != "unwrap_model":
            used += [*call.args, *(each.value for each in call.keywords)]
        if any(v.kind in ("wrapped", "prepared model") for each in used for v in kinds.find(each, scope)):
            yield call, scope


def _find_way(call: ast.Call, scope: Scope, kinds: Kinds) -> str | None:
    """Return how a call goes around a wrapper; None where it does not."""
    if not isinstance(call.func, HOLDERS):
        return None
    models = kinds.all_of(call.func, scope, "model")
    if not models and isinstance(call.func, ast.Attribute) and call.func.attr not in PASSIVE:
        models = kinds.all_of(call.func.value, scope, "model")
    wraps = [
        wrap
        for wrap in (*wraps_of(kinds), *prepares_of(kinds))
        if any(model.may_be(each) for model in models for each in wrap.value.inner)
        and all(each.kind == "model" for each in wrap.value.inner)
    ]
    if not wraps:
        return None
    if not goes_through_module(call.func, scope, kinds) and not all(
        w.before(call, scope, kinds) for w in wraps
    ):
        return None
    if any(each.value.kind != "wrapped" for each in wraps):
        return (
            "unwrapped"
            if any(name in ("module", "unwrap_model") for name in names_in(call.func))
            else "given"
        )
    return "module" if any(name in ("module", "unwrap") for name in names_in(call.func)) else "bare"


@check("DDP005", family="source", needs=("sources",), id="lint.wrapper_used", commands=LINT)
def tell_bypassed(evidence: Evidence) -> Iterable[Finding]:
    """A loss is made by the model inside of the wrapper."""
    ways = {
        "loop": "The model is called through .module",
        "module": "The model is called through .module",
        "unwrapped": "What Accelerate prepared is unwrapped and called",
        "given": "The model is called, and not what Accelerate made of it,",
        "bare": "The model is called, and not the DistributedDataParallel that wraps it,",
    }
    for fact in facts_of(evidence, "bypassed"):
        backward = name_line(fact.related[0].place)
        yield tell_fact(
            fact,
            f"{ways[fact.details['way']]} at {name_line(fact.place)}, and the backward pass at {backward} "
            "trains it: gradients are never reduced.",
            Fix(
                "call the wrapper in training; move whatever else the step needs into the model's forward",
                code=_call_wrapper(fact.place.text),
            ),
            why=(
                "that loss comes from no forward pass of the wrapper, and nothing else in the program "
                "reduces gradients"
            ),
        )


def _call_wrapper(text: str) -> str:
    if ".module(" in text and read_line(text) is not None:
        return text.replace(".module(", "(")
    return "output = model(inputs)          # the DistributedDataParallel, not model.module"
