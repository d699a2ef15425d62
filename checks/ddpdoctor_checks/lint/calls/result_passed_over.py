"""NUM005: of several results of one call, one alone is not reduced."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import DIST
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_calls, own_nodes
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

JOINS = frozenset(
    f"{DIST}{name}" for name in ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor")
)
COUNTS = frozenset({"update", "append", "add"})
"""Methods by which a loop keeps its results."""
HOLDERS = (ast.mod, ast.stmt, ast.ExceptHandler, ast.match_case)
BLOCKS = ("body", "orelse")
"""Fields of these in which statements stand; of what else has such fields they hold no lists."""


@lint_rule("result-passed-over", reads="module")
def find_passed_over(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield results that a loop keeps as they are, where others of the same call are reduced first.

    ``result-passed-over``; name: the variable, other: one that is reduced. Only what a function of the files reduces.
    """
    for scope in module.walk():
        results = [] if isinstance(scope.node, ast.ClassDef) else list(_list_results(scope))
        calls = list(find_calls(scope)) if results else []
        for kept in _list_kept(scope) if results else ():
            for names in (each & set(kept) for each in results):
                reducing = [
                    call for call in calls if _names(call.args) & names and _reduces(call, scope, files)
                ]
                left = names - {name for call in reducing for name in _names(call.args)}
                for name in sorted(left) if reducing else ():
                    call = reducing[0]
                    related = (RelatedPlace("noticed", scope.place(call)),)
                    details = {"name": name, "other": min(_names(call.args) & names)}
                    yield SourceFact(
                        "result-passed-over", scope.place(kept[name]), related, details, certain=False
                    )


def _reduces(call: ast.Call, scope: Scope, files: Files) -> bool:
    called = files.function(call.func, scope)
    return called is not None and any(files.dotted(each.func, called) in JOINS for each in find_calls(called))


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def _list_results(scope: Scope) -> Iterator[set[str]]:
    """Yield the variables to which the results of one call are assigned, each a name of its own."""
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1:
            target = node.targets[0]
            names = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
            if len(names) > 1 and all(isinstance(each, ast.Name) for each in names):
                yield {each.id for each in names if isinstance(each, ast.Name)}


def _list_kept(scope: Scope) -> Iterator[dict[str, ast.Call]]:
    """Yield the variables that statements of one block keep, each with the call that does."""
    nodes: list[ast.AST] = [scope.node, *own_nodes(scope.node)]
    for node in nodes:
        blocks = (getattr(node, name, ()) for name in BLOCKS) if isinstance(node, HOLDERS) else ()
        for rows in blocks:
            calls = [each.value for each in rows if isinstance(each, ast.Expr)]
            kept = {n: call for call in calls if isinstance(call, ast.Call) for n in _keeps(call)}
            if len(kept) > 1:
                yield kept


def _keeps(call: ast.Call) -> Iterator[str]:
    """Yield the variable that a call of a method keeps: ``meter.update(loss.item(), size)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in COUNTS and call.args:
        value = call.args[0]
        while isinstance(value, (ast.Call, ast.Attribute, ast.Subscript)):
            value = value.func if isinstance(value, ast.Call) else value.value
        if isinstance(value, ast.Name):
            yield value.id


@check("NUM005", family="source", needs=("sources",), id="lint.result_reduced", commands=LINT)
def tell_passed_over(evidence: Evidence) -> Iterable[Finding]:
    """A loop keeps a result of its own part of the data, beside others that it reduces."""
    for fact in facts_of(evidence, "result-passed-over"):
        name, other = fact.details["name"], fact.details["other"]
        yield tell_fact(
            fact,
            f"{name} at {name_line(fact.place)} is a result of this rank's own batches: {other} of the same call is "
            f"reduced at {name_line(fact.related[0].place)}, and {name} is not.",
            Fix("reduce it as the others", code=fact.related[0].place.text.replace(other, name)),
            why=f"{name} and {other} come from one call",
            severity="warning",
        )
