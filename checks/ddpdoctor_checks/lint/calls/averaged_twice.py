"""NUM009: a sum over ranks is divided by the number of ranks twice."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.known import SIZES
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.walking import find_argument, find_calls, find_keyword, name_last, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

AVERAGE = frozenset({"torch.distributed.ReduceOp.AVG", "torch.distributed.distributed_c10d.ReduceOp.AVG"})
REDUCES = frozenset({"torch.distributed.all_reduce", "torch.distributed.reduce"})
"""Collectives that change the tensor they are given, by the operation at place 1 or 2."""
DEEPEST = 4
"""Variables that are followed to the operation."""


@lint_rule("averaged-twice", reads="module")
def find_averaged_twice(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield divisions by the number of ranks of what ``ReduceOp.AVG`` has divided already (``averaged-twice``).

    ``AVG`` divides the sum by the size of the group (https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp).
    tensor: what is divided. Both lines are in one function and in one block, the division behind the collective, whose
    line is beside it. Not in a program that multiplies its loss or gradients by the number of ranks.
    """
    found = list(_find(module, files))
    if found and not any(_is_scaled(scope) for each in files.modules for scope in each.walk()):
        yield from found


def _find(module: Scope, files: Files) -> Iterator[SourceFact]:
    kinds = kinds_of(files)
    for scope in module.walk():
        flow = None
        for call in find_calls(scope):
            if (files.dotted(call.func, scope) or "") not in REDUCES or not call.args:
                continue
            place = 1 if name_last(call.func) == "all_reduce" else 2
            operation = find_keyword(call, "op", place)
            if operation is None or not _is_average(operation, scope, kinds, 0):
                continue
            flow = flow or kinds.flow(scope)
            tensor, own = ast.unparse(call.args[0]), flow.spot(call)
            for statement, spot in flow.statements:
                if own is None or not own.surely_before(spot):
                    continue
                if _divides(statement, tensor):
                    beside = RelatedPlace("noticed", scope.place(call))
                    details = {"tensor": tensor}
                    certain = spot.blocks == own.blocks
                    yield SourceFact(
                        "averaged-twice", scope.place(statement), (beside,), details, certain=certain
                    )
                    break
                if _binds(statement, tensor):
                    break


def _is_scaled(scope: Scope) -> bool:
    """Whether a function multiplies a loss, or gradients, by the number of ranks."""
    losses = [
        call.func.value
        for call in find_calls(scope)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
    ]
    names = {ast.unparse(each) for each in losses}
    for each in own_nodes(scope.node):
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        if isinstance(each, (ast.Assign, ast.AugAssign)) and target is not None:
            scaled = multiplies(each) or multiplies(each.value)
            if scaled and (ast.unparse(target) in names or _is_gradient(target)):
                return True
        elif isinstance(each, ast.Call) and multiplies(each) and _is_gradient(each.func):
            return True
    return any(map(multiplies, losses))


def multiplies(node: ast.AST) -> bool:
    """Whether a part of this multiplies by the number of ranks."""
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult):
            sides = [each.left, each.right]
        elif isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Mult):
            sides = [each.value]
        elif isinstance(each, ast.Call) and name_last(each.func) in ("mul", "mul_"):
            sides = each.args
        else:
            continue
        if any(map(is_size, sides)):
            return True
    return False


def _is_gradient(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "grad" for each in ast.walk(node))


def _is_average(node: ast.expr, scope: Scope, kinds: Kinds, depth: int) -> bool:
    """Whether an operation is the average whatever a caller gives."""
    if kinds.files.dotted(node, scope) in AVERAGE:
        return True
    if depth > DEEPEST:
        return False
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        owner = scope.find_class()
        values = owner.attributes.get(node.attr, []) if owner is not None else []
        homes = [(each, owner.makers.get(each)) for each in values] if owner is not None else []
        return bool(homes) and all(
            home is not None and _is_average(each, home, kinds, depth + 1) for each, home in homes
        )
    if not isinstance(node, ast.Name):
        return False
    home, values = scope.lookup(node.id) or (scope, [])
    if values != [UNKNOWN] or node.id not in home.parameters:
        return (
            len(values) == 1 and values[0] is not UNKNOWN and _is_average(values[0], home, kinds, depth + 1)
        )
    given = [(find_argument(call, home, node.id), where) for call, where in kinds.callers(home)]
    default = _find_default(home, node.id)
    return bool(given) and all(
        _is_average(each, where, kinds, depth + 1)
        if each is not None
        else default is not None and _is_average(default, home.outer or home, kinds, depth + 1)
        for each, where in given
    )


def _find_default(function: Scope, name: str) -> ast.expr | None:
    node = function.node
    if isinstance(node, (ast.Module, ast.ClassDef)):
        return None
    every = [*node.args.posonlyargs, *node.args.args]
    return dict(zip((each.arg for each in every[::-1]), node.args.defaults[::-1], strict=False)).get(name)


def _divides(statement: ast.stmt, tensor: str) -> bool:
    """Whether a statement divides a tensor by the number of ranks."""
    if isinstance(statement, ast.AugAssign):
        return (
            isinstance(statement.op, ast.Div)
            and ast.unparse(statement.target) == tensor
            and is_size(statement.value)
        )
    for each in ast.walk(statement) if isinstance(statement, (ast.Assign, ast.Expr, ast.Return)) else ():
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div):
            if ast.unparse(each.left) in (tensor, f"{tensor}.item()") and is_size(each.right):
                return True
        elif isinstance(each, ast.Call) and name_last(each.func) in ("div_", "div") and each.args:
            owner = each.func.value if isinstance(each.func, ast.Attribute) else None
            if owner is not None and ast.unparse(owner) == tensor and is_size(each.args[0]):
                return True
    return False


def is_size(node: ast.expr) -> bool:
    """Whether an expression is the number of ranks, by its name."""
    called = node.func if isinstance(node, ast.Call) else node
    return name_last(called) in SIZES


def _binds(statement: ast.stmt, tensor: str) -> bool:
    return isinstance(statement, ast.Assign) and any(
        ast.unparse(each) == tensor for each in statement.targets
    )


@check("NUM009", family="source", needs=NEEDS, id="lint.averaged_twice", commands=LINT)
def tell_averaged_twice(evidence: Evidence) -> Iterable[Finding]:
    """What is averaged over ranks is divided by their number once more."""
    for fact in facts_of(evidence, "averaged-twice"):
        tensor = fact.details["tensor"]
        yield tell_fact(
            fact,
            f"{tensor} is divided by the world size at {name_line(fact.place)}, and ReduceOp.AVG at "
            f"{name_line(fact.related[0].place)} has already averaged it: it is too small by that factor.",
            Fix(
                "drop the division, or reduce with ReduceOp.SUM",
                code=f"dist.all_reduce({tensor}, op=dist.ReduceOp.SUM)",
            ),
            why="ReduceOp.AVG divides the sum by the size of the group",
            severity="warning",
        )
