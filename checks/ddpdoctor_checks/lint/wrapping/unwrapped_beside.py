"""DDP015: a model is trained beside wrapped ones, and is itself never wrapped."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.makers import find_class_kind
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import PASSED
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import own_nodes
from ddpdoctor.source.training.train_loops import HOLDERS, Forward, TrainingLoop, is_step, training_loops
from ddpdoctor.source.training.wraps import reduces_by_hand, wraps_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.wrapping.model_unwrapped import imports_managers
from ddpdoctor_checks.lint.wrapping.module_called import is_without_gradients

ELSEWHERE = ("accelerate", "apex")
"""Known packages that may reduce gradients."""


@lint_rule("unwrapped-beside", reads="files")
def find_beside(files: Files) -> Iterator[SourceFact]:
    """Yield steps on a model that no wrapper holds, in a loop that trains wrapped ones too (``unwrapped-beside``).

    model: its expression. The place is the step; the call of the model, and a wrapper of another one, are beside. Only
    where the optimizer is given the parameters of that very model, and the model to nothing that may wrap it, hold it
    or reduce its gradients.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not loop.wrapped:
            continue
        for forward in loop.forwards:
            for model in _list_models(forward, kinds):
                step = _find_step(loop, model, kinds)
                if step is None or step[0] in told or _may_be_held(model, loop.scope.module, kinds):
                    continue
                if reduces_by_hand(loop.scope, kinds) or imports_managers(loop.scope.module, kinds, True):
                    break
                told.add(step[0])
                wrapper = loop.wrapped[0].values[0]
                beside = [RelatedPlace("noticed", forward.scope.place(forward.call))]
                if wrapper.scope is not None:
                    beside.append(RelatedPlace("noticed", wrapper.scope.place(wrapper.call)))
                name = ast.unparse(forward.call.func)
                place = step[1].place(step[0])
                yield SourceFact("unwrapped-beside", place, tuple(beside), {"model": name}, certain=False)


def _list_models(forward: Forward, kinds: Kinds) -> Iterator[Value]:
    """Yield what a call calls, where it is a model, wrapped nowhere, and called for its gradients."""
    if any(each.kind != "model" or each.guessed for each in forward.values):
        return
    if is_without_gradients(forward.call, forward.scope):
        return
    wraps = wraps_of(kinds)
    if all(each.made is not None for wrap in wraps for each in wrap.value.inner):
        yield from (each for each in forward.values if not any(wrap.holds(each) for wrap in wraps))


def _find_step(loop: TrainingLoop, model: Value, kinds: Kinds) -> tuple[ast.Call, Scope] | None:
    """Return the step of a loop whose optimizer, whichever way a run takes, was given the parameters of a model."""
    for call, scope in loop.calls:
        if not is_step(call, scope, kinds) or not isinstance(call.func, ast.Attribute):
            continue
        found = kinds.all_of(call.func.value, scope, "optimizer", "scaler")
        if found and all(each.kind == "scaler" for each in found) and call.args:
            found = kinds.all_of(call.args[0], scope, "optimizer")
        if found and all(each.kind == "optimizer" and _trains(each, model, kinds) for each in found):
            return call, scope
    return None


def _trains(optimizer: Value, model: Value, kinds: Kinds) -> bool:
    """Whether an optimizer was given the parameters of a model where it was made."""
    scope = optimizer.scope
    return scope is not None and any(
        isinstance(each, ast.Attribute)
        and each.attr in ("parameters", "named_parameters")
        and any(value.may_be(model) for value in kinds.find(each.value, scope))
        for each in ast.walk(optimizer.call)
    )


def _may_be_held(model: Value, module: Scope, kinds: Kinds) -> bool:
    """Whether a model is given to what may hold, wrap or change it: another model, or code that was not read."""
    for call, scope, name in kinds.programs.calls(module):
        given = [each for each in _given(call) if any(v.may_be(model) for v in kinds.find(each, scope))]
        if given and not _leaves_alone(call, scope, name, kinds):
            return True
    return any(
        not (isinstance(target.value, ast.Name) and target.value.id == "self")
        and any(v.may_be(model) for v in kinds.find(node.value, scope))
        for member in kinds.programs.members(module)
        for scope in member.walk()
        for node in own_nodes(scope.node)
        if isinstance(node, ast.Assign) and isinstance(node.value, HOLDERS)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    )


def _given(call: ast.Call) -> Iterable[ast.expr]:
    for each in (*call.args, *(keyword.value for keyword in call.keywords)):
        held = each.values if isinstance(each, ast.Dict) else [each]
        elements = each.elts if isinstance(each, (ast.List, ast.Tuple)) else held
        yield from (one for one in elements if isinstance(one, HOLDERS))


def _leaves_alone(call: ast.Call, scope: Scope, name: str, kinds: Kinds) -> bool:
    """Whether a call neither holds a model that it is given as a part of another one, nor wraps it."""
    owner = kinds.files.find_class(call.func, scope)
    if owner is not None:
        return find_class_kind(owner, kinds.files) != "model"
    if kinds.files.function(call.func, scope) is not None:
        return True
    root = name.split(".")[0]
    if name in PASSED:
        return True
    return root in KNOWN_ROOTS and root not in ELSEWHERE and not name.startswith("torch.nn.")


@check("DDP015", family="source", needs=("sources",), id="lint.model_beside", commands=LINT)
def tell_beside(evidence: Evidence) -> Iterable[Finding]:
    """A model is trained beside wrapped ones, and is itself never wrapped."""
    for fact in facts_of(evidence, "unwrapped-beside"):
        model = fact.details["model"]
        called, *wrap = (name_line(each.place) for each in fact.related)
        other = f", as that at {wrap[0]} wraps another one" if wrap else ""
        yield tell_fact(
            fact,
            f"The optimizer steps at {name_line(fact.place)} with the gradients that one rank has of {model} "
            f"({called}): no DistributedDataParallel wraps it{other}.",
            Fix(
                "wrap each model that is trained before its first step",
                code=f"{model} = DistributedDataParallel({model})",
            ),
            why="the optimizer has the parameters of that model, and nothing in the program reduces its gradients",
        )
