"""NUM009: a loss is divided by the number of ranks, or by a count of theirs, and the gradients are averaged as well."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact, SourcePlace
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import DIST
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.known import SIZES
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, name_last, own_nodes
from ddpdoctor.source.training.graphs import loss_of, slice_of
from ddpdoctor.source.training.train_loops import is_backward, training_loops
from ddpdoctor_checks.lint.calls.averaged_twice import is_size, multiplies
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

SUMS = frozenset({"register_comm_hook", "all_gather_with_grad", "GatherLayer"})
BOUNDS = frozenset({"item", "clamp", "clamp_", "clamp_min", "float", "double"})
"""Methods that leave a number as it is, but for where it is too small."""
WITH_GRADIENT = ("torch.distributed.nn.", "torch.distributed._functional_collectives.")
"""Collectives through which gradients flow: what they gather is summed in the backward pass."""


@lint_rule("loss-divided", reads="files")
def find_divided(files: Files) -> Iterator[SourceFact]:
    """Yield backward passes of a loss that was divided by the number of ranks (``loss-divided``).

    DistributedDataParallel divides gradients by it as well
    (https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html). Silent in a program
    that multiplies anything by that number, such as the learning rate, and in one whose collectives carry gradients or
    whose reduction is its own. A forward pass through the wrapper is beside.

    by: ``ranks``, or ``count`` where a sum over the rank's own samples is divided by a number that was summed over all
    ranks: averaged, that is too small by the number of ranks as well.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not loop.wrapped or _compensates(loop.scope.module, kinds):
            continue
        forward = loop.wrapped[0]
        for call, scope in loop.calls:
            if not is_backward(call) or call in told:
                continue
            divided = _find_division(call, scope, kinds)
            place = scope.place(divided[0]) if divided is not None else _find_part(call, scope, kinds)
            if place is not None:
                told.add(call)
                beside = (RelatedPlace("noticed", forward.scope.place(forward.call)),)
                by = divided[1] if divided is not None else "count"
                yield SourceFact("loss-divided", place, beside, {"by": by})


def _find_division(call: ast.Call, scope: Scope, kinds: Kinds) -> tuple[ast.AST, str] | None:
    """Return the division of what a backward pass begins with, by its last assignment, and by what it divides."""
    if not isinstance(call.func, ast.Attribute):
        return None
    loss = call.func.value
    by = _divided_by(loss, scope, kinds)
    if by is not None:
        return call, by
    own = kinds.flow(scope).spot(call)
    if not isinstance(loss, ast.Name) or own is None:
        return None
    last: ast.stmt | None = None
    for statement, spot in kinds.flow(scope).statements:
        if spot.number >= own.number:
            break
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        if any(isinstance(each, ast.Name) and each.id == loss.id for each in targets):
            last = statement if spot.surely_before(own) else None
    if isinstance(last, ast.AugAssign):
        by = _divided_by(ast.BinOp(last.target, last.op, last.value), scope, kinds)
    else:
        by = _divided_by(last.value, scope, kinds) if isinstance(last, ast.Assign) else None
    return (last, by) if last is not None and by is not None else None


def _divided_by(node: ast.expr, scope: Scope, kinds: Kinds) -> str | None:
    """Return ``ranks`` or ``count`` for what a value is divided by; None for others."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        if is_size(node.right):
            return "ranks"
        return (
            "count"
            if _is_sum(node.left, scope, kinds) and _is_count_of_all(node.right, scope, kinds)
            else None
        )
    called = isinstance(node, ast.Call) and name_last(node.func) == "div" and len(node.args) == 1
    return "ranks" if isinstance(node, ast.Call) and called and is_size(node.args[0]) else None


def _find_part(call: ast.Call, scope: Scope, kinds: Kinds) -> SourcePlace | None:
    """Return where a part of a loss is divided by a count of all ranks, in a function that the loss comes through."""
    loss = loss_of(call)
    behind = slice_of(loss, scope, kinds).calls if loss is not None else ()
    for home in dict.fromkeys(home for _, home in behind):
        for node in own_nodes(home.node):
            if isinstance(node, ast.BinOp) and _divided_by(node, home, kinds) == "count":
                return home.place(node)
    return None


def _is_sum(node: ast.expr, scope: Scope, kinds: Kinds) -> bool:
    """Whether a loss adds up those of the samples: ``reduction="sum"``, here or where it is made, or ``.sum()``."""
    values = _list_values(node.id, scope) if isinstance(node, ast.Name) else [node]
    return bool(values) and all(
        isinstance(each, ast.Call) and _sums_up(each, scope, kinds) for each in values
    )


def _list_values(name: str, scope: Scope) -> list[ast.expr]:
    """Return what a variable is bound to, but for quotients of itself: ``loss = loss / tokens``, ``loss /= tokens``.

    Nothing where it may be bound to something else.
    """
    home, values = scope.lookup(name) or (scope, [])
    shares = [
        each
        for each in own_nodes(home.node)
        if isinstance(each, ast.AugAssign)
        and isinstance(each.op, ast.Div)
        and getattr(each.target, "id", "") == name
    ]
    known = [each for each in values if each is not UNKNOWN]
    if len(values) - len(known) > len(shares):
        return []
    return [
        each
        for each in known
        if not (
            isinstance(each, ast.BinOp)
            and isinstance(each.op, ast.Div)
            and getattr(each.left, "id", "") == name
        )
    ]


def _sums_up(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "sum":
        return not call.args
    made = kinds.files.find_maker(call.func, scope)
    given = (find_keyword(each, "reduction") for each in (call, *((made[0],) if made is not None else ())))
    return any(isinstance(each, ast.Constant) and each.value == "sum" for each in given)


def _is_count_of_all(node: ast.expr, scope: Scope, kinds: Kinds) -> bool:
    """Whether a variable is what ``all_reduce`` summed, here or in the function that gives it, and nothing divides."""
    node = _drop_bounds(node, scope, kinds)
    if not isinstance(node, ast.Name):
        return False
    home, values = scope.lookup(node.id) or (scope, [])
    if home is not scope or any(
        each is UNKNOWN or any(isinstance(part, ast.Div) for part in ast.walk(each)) for each in values
    ):
        return False
    if any(_sums_over_ranks(call, node.id, scope, kinds) for call in find_calls(scope)):
        return True
    only = values[0] if len(values) == 1 else None
    function = kinds.called(only, scope) if isinstance(only, ast.Call) else None
    if function is None:
        return False
    given = [each.value for each in own_nodes(function.node) if isinstance(each, ast.Return)]
    return bool(given) and all(each is not None and _is_count_of_all(each, function, kinds) for each in given)


def _drop_bounds(node: ast.expr, scope: Scope, kinds: Kinds) -> ast.expr:
    """Return the number of ``torch.clamp(number, min=1).item()``, ``max(number, 1)`` and the like."""
    while isinstance(node, ast.Call):
        func = node.func
        outer = kinds.files.dotted(func, scope) == "torch.clamp" or getattr(func, "id", "") == "max"
        if outer and node.args:
            node = node.args[0]
        elif isinstance(func, ast.Attribute) and func.attr in BOUNDS:
            node = func.value
        else:
            break
    return node


def _sums_over_ranks(call: ast.Call, name: str, scope: Scope, kinds: Kinds) -> bool:
    """Whether a call adds up a variable over all ranks."""
    if kinds.files.dotted(call.func, scope) != f"{DIST}all_reduce" or not call.args:
        return False
    operation = find_keyword(call, "op", 1)
    plain = operation is None or name_last(operation) == "SUM"
    return plain and find_keyword(call, "group", 2) is None and getattr(call.args[0], "id", "") == name


def _compensates(module: Scope, kinds: Kinds) -> bool:
    """Whether a program multiplies by the number of ranks, or sums gradients itself."""
    return kinds.programs.any_file(module, _sums, kinds)


def _sums(member: Scope, kinds: Kinds) -> bool:
    speaks = any(size in member.script.text for size in SIZES)
    return (speaks and multiplies(member.node)) or any(
        name_last(call.func) in SUMS or name.startswith(WITH_GRADIENT)
        for call, _, name in kinds.programs.list_calls(member)
    )


@check("NUM009", family="source", needs=NEEDS, id="lint.loss_divided", commands=LINT)
def tell_divided(evidence: Evidence) -> Iterable[Finding]:
    """A loss is divided by the number of ranks before gradients are averaged."""
    for fact in facts_of(evidence, "loss-divided"):
        by_ranks = fact.details["by"] == "ranks"
        loss, divisor, factor = (
            ("loss", "the world size", "that factor")
            if by_ranks
            else ("summed loss", "a count of all ranks", "the world size")
        )
        yield tell_fact(
            fact,
            f"The {loss} is divided by {divisor} at {name_line(fact.place)}, and DistributedDataParallel averages "
            f"the gradients too: they are too small by {factor}.",
            Fix("drop the division: gradients are averaged already", code="loss.backward()")
            if by_ranks
            else Fix(
                "multiply by the world size, which the average divides by",
                code="loss = loss * dist.get_world_size()",
            ),
            why=f"the loss comes from the wrapper called at {name_line(fact.related[0].place)}; nothing multiplies by "
            "the world size",
            severity="warning",
        )
