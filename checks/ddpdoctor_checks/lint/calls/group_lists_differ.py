"""COL006: each rank makes a group of its own list of ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import DIST
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.walking import find_keyword
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

DEEPEST = 6
"""Variables that are followed from the list to the rank."""


@lint_rule("group-list-differs", reads="module")
def find_own_lists(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield calls of `new_group` whose list of ranks is computed from the own rank (``group-list-differs``).

    ranks: how the list is written. With ``use_local_synchronization`` the members alone make a group, each its own.
    Source: torch.distributed.new_group requires all ranks to make all groups, with the same lists in the same order.
    """
    reader = RankReader(files)
    for scope in module.walk():
        for call, name in name_calls(scope, files):
            if name != f"{DIST}new_group" or find_keyword(call, "use_local_synchronization") is not None:
                continue
            ranks = find_keyword(call, "ranks", 0)
            if ranks is not None and _follows_rank(ranks, scope, reader):
                details = {"ranks": ast.unparse(ranks)}
                yield SourceFact("group-list-differs", scope.place(call), details=details)


def _follows_rank(node: ast.expr, scope: Scope, reader: RankReader, depth: int = 0) -> bool:
    """Whether a list is computed from the own rank, by arithmetic, ranges, lists and variables that are bound once."""
    if depth > DEEPEST:
        return False
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and reader.rank(node, scope) is True:
        return True
    inner: list[ast.expr] = []
    if isinstance(node, ast.Name):
        found = scope.lookup(node.id)
        if found is not None and found[0] is scope and len(found[1]) == 1:
            inner = [found[1][0]]
    elif isinstance(node, ast.BinOp):
        inner = [node.left, node.right]
    elif isinstance(node, (ast.List, ast.Tuple)):
        inner = node.elts
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("list", "range", "sorted")
    ):
        inner = node.args
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
        inner = [node.elt, node.generators[0].iter]
    return any(_follows_rank(each, scope, reader, depth + 1) for each in inner)


@check("COL006", family="source", needs=NEEDS, id="lint.group-lists", commands=LINT)
def tell_own_lists(evidence: Evidence) -> Iterable[Finding]:
    """Each rank makes a group of another list of ranks."""
    for fact in facts_of(evidence, "group-list-differs"):
        ranks = fact.details["ranks"]
        yield tell_fact(
            fact,
            f"new_group at {name_line(fact.place)} gets {ranks}, which differs across ranks: each rank creates another "
            "group than the others.",
            Fix(
                "create all groups on all ranks in the same order, and keep the one that contains this rank",
                code="for members in all_lists:\n    group = dist.new_group(members)\n    if rank in members:\n"
                "        own = group",
            ),
            why=f"{ranks} was followed to the rank",
            severity="warning",  # where no group is used by another rank than its maker, the job ends well
        )
