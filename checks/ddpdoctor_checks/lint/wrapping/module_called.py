"""Loops that train a wrapped model and call the model inside of the wrapper alone: a part of DDP005."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.properties import find_property
from ddpdoctor.source.resolve.walking import find_calls, own_nodes
from ddpdoctor.source.training.train_loops import (
    HOLDERS,
    Forward,
    TrainingLoop,
    is_backward,
    is_step,
    training_loops,
)
from ddpdoctor.source.training.wraps import REDUCES

OF_METRICS = re.compile(r"loss|acc|metric|meter|count|correct|total|num_|sum|avg|mean", re.IGNORECASE)
"""Names of what is reduced to be shown."""
OF_GRADIENTS = re.compile(r"\.grad\b|grads\b|gradients|parameters\(")
WITHOUT_GRADIENTS = ("no_grad", "inference_mode")


def find_in_loops(kinds: Kinds, told: set[ast.AST]) -> Iterator[SourceFact]:
    """Yield calls of ``model.module(x)`` in a loop that trains, where the wrapper is not called (``bypassed``).

    How the loss is made of what the call gives is not followed.

    Args:
        kinds: of all files.
        told: calls that were told already.
    """
    for loop in training_loops(kinds):
        for forward in loop.forwards:
            wrapper = _wrapper_of(forward, kinds) if forward.call not in told else None
            if forward.scope is not loop.scope and not _steps(wrapper, forward.scope, loop, kinds):
                continue
            if wrapper is None or is_without_gradients(forward.call, forward.scope):
                continue
            if any(_counts(each, forward, wrapper, kinds) for each in loop.wrapped):
                continue
            if _is_given_away(loop, wrapper, kinds) or _reduces_gradients(loop.scope.module, kinds):
                continue
            backward = next((pair for pair in loop.calls if is_backward(pair[0])), None)
            if backward is not None:
                told.add(forward.call)
                noticed = RelatedPlace("noticed", backward[1].place(backward[0]))
                yield SourceFact(
                    "bypassed", forward.scope.place(forward.call), (noticed,), {"way": "loop"}, certain=False
                )


def _takes_step(scope: Scope, kinds: Kinds) -> bool:
    """Whether a function itself makes a backward pass and a step of an optimizer."""
    calls = list(find_calls(scope))
    return any(map(is_backward, calls)) and any(is_step(each, scope, kinds) for each in calls)


def _steps(wrapper: object, scope: Scope, loop: TrainingLoop, kinds: Kinds) -> bool:
    """Whether a function, or another method of its class, steps an optimizer that has the parameters of a wrapper."""
    if wrapper is None:
        return False
    owner = scope.find_class()
    homes = {home for _, home in loop.calls if owner is not None and home.find_class() is owner}
    homes = {scope} if _takes_step(scope, kinds) else homes if any(map(_has_backward, homes)) else set()
    owners = [
        (call.func.value, home)
        for home in homes
        for call in find_calls(home)
        if isinstance(call.func, ast.Attribute) and is_step(call, home, kinds)
    ]
    for made in (
        value for node, home in owners for value in kinds.find(node, home) if value.kind == "optimizer"
    ):
        for each in ast.walk(made.call):
            named = each.value if isinstance(each, ast.Attribute) and each.attr == "parameters" else None
            found = kinds.find(named, made.scope) if named is not None and made.scope is not None else ()
            if any(value.identity == wrapper for value in found):
                return True
    return False


def _has_backward(scope: Scope) -> bool:
    return any(map(is_backward, find_calls(scope)))


def _wrapper_of(forward: Forward, kinds: Kinds) -> object:
    """Return the identity of the wrapper whose ``.module`` is called; None where it is none."""
    func, scope = _read_property(_read_name(forward.call.func, forward.scope), forward.scope)
    if not isinstance(func, ast.Attribute) or func.attr != "module":
        return None
    # whatever else it may be has no module
    found = [each for each in kinds.find(func.value, scope) if each.kind == "wrapped"]
    return found[0].identity if len(found) == 1 else None


def _read_name(func: ast.expr, scope: Scope) -> ast.expr:
    """Return ``model.module`` for a name that is bound once, to it or to ``model.module if … else model``."""
    found = scope.lookup(func.id) if isinstance(func, ast.Name) else None
    if found is None or len(found[1]) != 1 or not isinstance(found[1][0], (ast.Attribute, ast.IfExp)):
        return func
    bound = found[1][0]
    if isinstance(bound, ast.Attribute):
        return bound
    arms = [
        arm for arm in (bound.body, bound.orelse) if isinstance(arm, ast.Attribute) and arm.attr == "module"
    ]
    return arms[0] if len(arms) == 1 else func


def _read_property(func: ast.expr, scope: Scope) -> tuple[ast.expr, Scope]:
    """Return ``self.model.module`` for ``self.bare``, where that is a property which gives it."""
    owner = scope.find_class() if isinstance(func, ast.Attribute) else None
    given = find_property(owner, func.attr) if isinstance(func, ast.Attribute) and owner is not None else None
    return given if given is not None and ast.unparse(func).startswith("self.") else (func, scope)


def _counts(other: Forward, forward: Forward, wrapper: object, kinds: Kinds) -> bool:
    """Whether another call goes through the same wrapper, in a run in which the first call is made too."""
    if all(each.identity != wrapper for each in other.values):
        return False
    if is_without_gradients(other.call, other.scope):
        return False  # an evaluation between the steps
    if other.scope is not forward.scope:  # one function takes its own steps, as those of two networks do
        return not (_takes_step(other.scope, kinds) and _takes_step(forward.scope, kinds))
    return not kinds.flow(forward.scope).sets_apart(forward.call, other.call)


def _is_given_away(loop: TrainingLoop, wrapper: object, kinds: Kinds) -> bool:
    """Whether the wrapper is given to a function that was not read, which may call it."""
    for call, scope in loop.calls:
        if kinds.called(call, scope) is not None:
            continue
        if isinstance(call.func, ast.Name) and call.func.id in ("isinstance", "hasattr", "getattr", "print"):
            continue
        given = [*call.args, *(each.value for each in call.keywords)]
        named = (each for each in given if isinstance(each, HOLDERS))
        if any(value.identity == wrapper for each in named for value in kinds.find(each, scope)):
            return True
    return False


def _reduces_gradients(module: Scope, kinds: Kinds) -> bool:
    """Whether a function of the program that has a collective also speaks of gradients or parameters."""
    return kinds.programs.any_file(module, _reduces_in, kinds)


def _reduces_in(member: Scope, kinds: Kinds) -> bool:
    return any(
        name.rpartition(".")[2] in REDUCES
        and name.startswith("torch.distributed.")
        and not (call.args and OF_METRICS.search(ast.unparse(call.args[0])))
        and OF_GRADIENTS.search(ast.unparse(call if isinstance(scope.node, ast.Module) else scope.node))
        for call, scope, name in kinds.programs.list_calls(member)
    )


def is_without_gradients(call: ast.Call, scope: Scope) -> bool:
    """Whether a call stands where no gradients are recorded."""
    for node in own_nodes(scope.node):
        if isinstance(node, (ast.With, ast.AsyncWith)) and any(each is call for each in ast.walk(node)):
            heads = " ".join(ast.unparse(item.context_expr) for item in node.items)
            if any(word in heads for word in WITHOUT_GRADIENTS):
                return True
    decorators = " ".join(ast.unparse(each) for each in getattr(scope.node, "decorator_list", ()))
    return any(word in decorators for word in WITHOUT_GRADIENTS)
