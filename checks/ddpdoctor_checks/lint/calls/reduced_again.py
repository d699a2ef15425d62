"""NUM009: a running total is all-reduced in each round of the loop that adds to it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import DIST
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_keyword, is_spelled_out, name_last, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

RESETS = frozenset({"zero_", "fill_", "copy_", "div_", "reset", "clear"})
"""Methods that begin a total anew, or take the number of ranks out of it."""


@lint_rule("reduced-again", reads="module")
def find_reduced_again(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield sums over ranks of what a loop adds up, made in each round of it (``reduced-again``).

    What the other ranks had is in the total already, and is added once more with each round. name: the total. Nothing
    where the loop sets it anew, or divides it, or the function does not use it. The line that adds to it is beside.
    """
    for scope in module.walk():
        for loop in own_nodes(scope.node):
            if isinstance(loop, (ast.For, ast.While)):
                yield from _find_in(loop, scope, files)


def _find_in(loop: ast.For | ast.While, scope: Scope, files: Files) -> Iterator[SourceFact]:
    summed = {
        ast.unparse(call.args[0]): call
        for call in _list_calls(loop.body)
        if files.dotted(call.func, scope) == f"{DIST}all_reduce" and _is_sum(call)
    }
    if not summed:
        return
    nodes = list(own_nodes(loop))
    anew = {name for node in (loop, *nodes) for name in _list_set(node)}
    for node in nodes:
        if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add):
            continue
        name = ast.unparse(node.target)
        if name not in summed or name in anew or name.split(".")[0] in anew:
            continue
        if _is_read(name, {id(each) for each in ast.walk(summed[name])}, scope):
            beside = (RelatedPlace("noticed", scope.place(node)),)
            yield SourceFact(
                "reduced-again", scope.place(summed.pop(name)), beside, {"name": name}, certain=True
            )


def _list_calls(body: Iterable[ast.stmt]) -> Iterator[ast.Call]:
    """Yield the calls that each round makes, whatever it finds."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield statement.value
        elif isinstance(statement, ast.With):
            yield from _list_calls(statement.body)


def _is_sum(call: ast.Call) -> bool:
    """Whether it adds up a variable, or an attribute of one, over the ranks."""
    if not call.args or not isinstance(call.args[0], (ast.Name, ast.Attribute)) or not is_spelled_out(call):
        return False
    operation = find_keyword(call, "op", 1)
    return operation is None or name_last(operation) == "SUM"


def _is_read(name: str, apart: set[int], scope: Scope) -> bool:
    """Whether a function uses a total, other than to add to it and to sum it."""
    return any(
        isinstance(each, (ast.Name, ast.Attribute))
        and isinstance(each.ctx, ast.Load)
        and id(each) not in apart
        and ast.unparse(each) == name
        for each in own_nodes(scope.node)
    )


def _list_set(node: ast.AST) -> Iterator[str]:
    """Yield what a node sets anew, or divides."""
    if isinstance(node, (ast.Assign, ast.For)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            yield from map(ast.unparse, parts)
    elif isinstance(node, ast.AugAssign) and not isinstance(node.op, (ast.Add, ast.Sub)):
        yield ast.unparse(node.target)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RESETS:
        yield ast.unparse(node.func.value)


@check("NUM009", family="source", needs=NEEDS, id="lint.reduced_again", commands=LINT)
def tell_reduced_again(evidence: Evidence) -> Iterable[Finding]:
    """A running total is summed over the ranks again and again."""
    for fact in facts_of(evidence, "reduced-again"):
        name = fact.details["name"]
        yield tell_fact(
            fact,
            f"all_reduce at {name_line(fact.place)} sums {name} across ranks in each iteration of the loop that adds "
            "to it: what earlier iterations summed is multiplied by the world size each time.",
            Fix("reduce it once, after the loop", code=fact.place.text),
            why=f"nothing in the loop resets {name} or divides it",
            severity="warning",
        )
