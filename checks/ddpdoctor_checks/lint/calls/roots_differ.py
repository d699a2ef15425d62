"""COL003: each rank names another root."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.facts.collectives import COLLECTIVES
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import DIST, name_collective
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.traces import Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, own_nodes
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

ROOTS = {row.name: row.root for row in COLLECTIVES.values() if row.root is not None}
"""Collectives with a root, and where it stands."""


@lint_rule("root-differs", reads="program")
def find_roots_that_differ(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield collectives whose root is each rank's own number, or one near it (``root-differs``).

    operation: the collective. root: how it is written.
    """
    if not trace.has_peers:
        return
    ways, ranks = ways_of(files, trace), RankReader(files)
    for step in trace.steps:
        call = step.call
        operation = name_collective(call, step.scope, files) if call is not None else None
        if call is None or operation not in ROOTS:
            continue
        keyword, position = ROOTS[operation]
        root = find_keyword(call, keyword, position)
        if root is None or not _is_own_rank(root, step, ranks) or ways.may_differ(step):
            continue
        yield ways.tell("root-differs", step, operation=operation, root=ast.unparse(root))


def _is_own_rank(root: ast.expr, step: Step, ranks: RankReader) -> bool:
    """Whether a root was followed to the rank, by additions and remainders alone."""
    node = root
    if isinstance(node, ast.Name):
        found = step.scope.lookup(node.id)
        if found is not None and len(found[1]) == 1 and isinstance(found[1][0], ast.BinOp):
            return found[0] is step.scope and _is_own_rank(found[1][0], step, ranks)
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mod)):
        if isinstance(node.op, ast.Sub) and not isinstance(node.right, ast.Constant):
            return False  # ``rank - rank % size``: the first rank of a group
        node = node.left
    return not isinstance(node, ast.BinOp) and ranks.rank(node, step.scope) is True


@lint_rule("roots-apart", "root-asked", reads="module")
def find_roots_apart(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield collectives whose root is another number on the two sides of a test on the rank (``roots-apart``).

    operation: the collective. root, other: both roots. The call of the other side is beside it. Also those whose root
    is ``get_rank()`` itself, which is wrong whoever calls them (``root-asked``).
    """
    ranks = RankReader(files)
    for scope in module.walk():
        if not any(name.removeprefix(DIST) in ROOTS for _, name in name_calls(scope, files)):
            continue
        yield from _find_asked(scope, files, ranks)
        for node in own_nodes(scope.node):
            if not isinstance(node, ast.If) or not node.orelse or ranks.read(node.test, scope) is None:
                continue
            left, right = (_rooted(side, scope, files) for side in (node.body, node.orelse))
            if [operation for operation, _, _ in left] != [operation for operation, _, _ in right]:
                continue
            for (operation, one, call), (_, other, beside) in zip(left, right, strict=True):
                if one is not None and other is not None and one != other:
                    related = (RelatedPlace("culprit", scope.place(beside)),)
                    place = scope.place(call)
                    details = {"operation": operation, "root": str(one), "other": str(other)}
                    yield SourceFact("roots-apart", place, related=related, details=details)


def _find_asked(scope: Scope, files: Files, ranks: RankReader) -> Iterator[SourceFact]:
    for call, name in name_calls(scope, files):
        operation = name.removeprefix(DIST)
        if not name.startswith(DIST) or operation not in ROOTS or _is_below_rank(call, scope, ranks):
            continue
        root = find_keyword(call, *ROOTS[operation])
        if isinstance(root, ast.Call) and files.dotted(root.func, scope) == f"{DIST}get_rank":
            details = {"operation": operation, "root": ast.unparse(root)}
            yield SourceFact("root-asked", scope.place(call), details=details)


def _is_below_rank(call: ast.Call, scope: Scope, ranks: RankReader) -> bool:
    """Whether a call is on one side of a test on the rank: then its root may be the only rank there."""
    return any(
        isinstance(node, (ast.If, ast.IfExp))
        and ranks.read(node.test, scope) is not None
        and any(each is call for each in ast.walk(node))
        for node in own_nodes(scope.node)
    )


def _rooted(side: list[ast.stmt], scope: Scope, files: Files) -> list[tuple[str, int | None, ast.Call]]:
    """Return the collectives of a side that have a root, with it where it is a number."""
    found = []
    calls = [each for statement in side for each in own_nodes(statement) if isinstance(each, ast.Call)]
    for call in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
        operation = name_collective(call, scope, files)
        if operation in ROOTS:
            root = find_keyword(call, *ROOTS[operation])
            number = root.value if isinstance(root, ast.Constant) and isinstance(root.value, int) else None
            found.append((operation, number, call))
    return found


@check("COL003", family="source", needs=NEEDS, id="lint.roots", commands=LINT)
def tell_roots(evidence: Evidence) -> Iterable[Finding]:
    """Each rank names another root."""
    traced = list(facts_of(evidence, "root-differs"))
    places = {(fact.place.file, fact.place.line) for fact in traced}
    asked = [
        fact for fact in facts_of(evidence, "root-asked") if (fact.place.file, fact.place.line) not in places
    ]
    for fact in (*traced, *asked):
        operation, root = fact.details["operation"], fact.details["root"]
        yield tell_fact(
            fact,
            f"{operation} at {name_line(fact.place)} has {root} as its root, which differs across ranks.",
            Fix("use one root rank, the same on all ranks", code=f"dist.{operation}(tensor, 0)"),
            why=f"{root} was followed to the rank",
        )
    for fact in facts_of(evidence, "roots-apart"):
        operation, one, other = (fact.details[name] for name in ("operation", "root", "other"))
        yield tell_fact(
            fact,
            f"{operation} at {name_line(fact.place)} has root {one}, but on the other side of the `if` "
            f"({name_line(fact.related[0].place)}) root {other}.",
            Fix("use one root rank, the same on all ranks", code=f"dist.{operation}(tensor, {one})"),
            why="a rank-dependent `if` decides between the two",
        )
