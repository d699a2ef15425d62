"""DDP007: no_sync is around a backward, and its forward is before it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import names_in
from ddpdoctor.source.training.graphs import loss_of, slice_of
from ddpdoctor.source.training.train_loops import HOLDERS, find_backwards, is_backward, reach, training_loops
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact


@lint_rule("no-sync-without-forward", reads="files")
def find_unenclosed(files: Files) -> Iterator[SourceFact]:
    """Yield ``no_sync`` around a backward whose forward was before it (``no-sync-without-forward``).

    model: how it is called.
    """
    kinds = kinds_of(files)
    scopes = [*(loop.scope for loop in training_loops(kinds)), *find_backwards(kinds).values()]
    for scope in dict.fromkeys(scopes):
        for statement, spot in kinds.flow(scope).statements:
            if not isinstance(statement, ast.With) or not spot.is_on:
                continue
            model = _unsynchronised(statement, scope, kinds)
            if model is None:
                continue
            calls = list(reach(statement.body, scope, kinds))
            if any(_runs(call, home, model, kinds) for call, home in calls):
                continue
            for call, home in calls:
                loss = loss_of(call) if is_backward(call) else None
                behind = slice_of(loss, home, kinds) if loss is not None else None
                forwards = (
                    [one for one in behind.calls if _runs(*one, model, kinds)] if behind is not None else []
                )
                if forwards and not any(_is_unsynchronised(*one, kinds) for one in forwards):
                    forward, there = forwards[0]
                    noticed = RelatedPlace("noticed", there.place(forward))
                    place = scope.place(statement)
                    yield SourceFact(
                        "no-sync-without-forward", place, (noticed,), {"model": ast.unparse(forward.func)}
                    )
                    break


def _unsynchronised(statement: ast.With, scope: Scope, kinds: Kinds) -> tuple[Value, ...] | None:
    """Return the wrapped model of whose ``no_sync`` a ``with`` is; None for every other."""
    for item in statement.items:
        for each in _contexts(item.context_expr, scope, kinds):
            func = each.func if isinstance(each, ast.Call) else each
            if isinstance(func, ast.Attribute) and func.attr == "no_sync":
                # what else it may be bears no such name, or means the same by it
                found = kinds.find(func.value, scope)
                return tuple(each for each in found if each.kind == "wrapped") or None
    return None


def _contexts(node: ast.expr, scope: Scope, kinds: Kinds) -> Iterator[ast.expr]:
    """Yield what a context manager may be: both sides of a choice, and what a name is bound to."""
    if isinstance(node, ast.IfExp):
        yield from _contexts(node.body, scope, kinds)
        yield from _contexts(node.orelse, scope, kinds)
        return
    yield node
    name = node.func if isinstance(node, ast.Call) else node
    if isinstance(name, ast.Name):
        spot = kinds.flow(scope).spot(name)
        for each in kinds.flow(scope).holding(name.id, spot) or () if spot is not None else ():
            if each.value is not None and each.kind == "assign":
                yield from _contexts(each.value, scope, kinds)


def _runs(call: ast.Call, scope: Scope, model: tuple[Value, ...], kinds: Kinds) -> bool:
    """Whether a call is a forward of a model, or may be: where the model is given to what is not among the files."""
    own = {each.identity for each in model}
    found = kinds.find(call.func, scope) if isinstance(call.func, HOLDERS) else ()
    if any(each.identity in own for each in found):
        return True
    if kinds.files.function(call.func, scope) is not None:
        return False
    given = [*call.args, *(each.value for each in call.keywords)]
    return any(each.identity in own for node in given for each in kinds.find(node, scope))


def _is_unsynchronised(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether a call stands below a ``no_sync`` in its function, or in one that is called below one."""
    for statement, _ in kinds.flow(scope).statements:
        if (
            isinstance(statement, ast.With)
            and any(each is call for each in ast.walk(statement))
            and any("no_sync" in names_in(item.context_expr) for item in statement.items)
        ):
            return True
    return False


@check("DDP007", family="source", needs=("sources",), id="lint.no_sync_whole", commands=LINT)
def tell_unenclosed(evidence: Evidence) -> Iterable[Finding]:
    """no_sync is around a backward, and its forward is before it."""
    for fact in facts_of(evidence, "no-sync-without-forward"):
        model = fact.details["model"]
        yield tell_fact(
            fact,
            f"no_sync() at {name_line(fact.place)} encloses only the backward pass; the forward pass at "
            f"{name_line(fact.related[0].place)} is before it, so gradients are reduced anyway.",
            Fix(
                "enclose the forward pass too",
                code=f"{fact.place.text}\n    loss = criterion({model}(inputs), targets)\n    loss.backward()",
            ),
            why="DistributedDataParallel decides in the forward pass whether the backward pass reduces",
        )
