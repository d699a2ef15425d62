"""Collectives of the two sides of a test: what one makes and the other lacks, and the rows made of it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence.sources import UnevenCall
from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.resolve.calls import GROUPS, name_collective
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.rank_tests import MEMBER, Difference, RankReader
from ddpdoctor.source.resolve.walking import find_keyword, own_nodes


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that a block makes."""

    operation: str
    node: ast.AST
    scope: Scope
    certain: bool = True
    inner: tuple[tuple[ast.AST, Scope], ...] = ()
    repeated: bool = False
    """Whether it stands in a loop, so that it may make up for several of the other side."""

    @property
    def identity(self) -> str:
        """What has to be equal on both sides of a test; for a new group the list of its ranks is part of it."""
        if self.operation == "new_group" and not self.inner and isinstance(self.node, ast.Call):
            ranks = find_keyword(self.node, "ranks", 0)
            found = self.scope.lookup(ranks.id) if isinstance(ranks, ast.Name) else None
            if found is not None and len(found[1]) == 1:
                ranks = found[1][0]
            return f"new_group {ast.dump(ranks)}" if ranks is not None else self.operation
        return self.operation


@dataclass(frozen=True, slots=True)
class Found:
    """A call that one side of a test makes and the other does not."""

    call: Call
    difference: Difference
    kind: str
    guard: ast.AST
    test: ast.expr


def doubt(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return calls to which not each run comes."""
    return tuple([replace(each, certain=False) if each.certain else each for each in calls])


def find_surplus(own: tuple[Call, ...], other: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return the calls that the other side lacks."""
    there = Counter(each.identity for each in other)
    repeated = {each.identity for each in other if each.repeated}
    left = []
    for each in own:
        if each.identity in repeated:
            continue
        if there[each.identity]:
            there[each.identity] -= 1
        else:
            left.append(each)
    return tuple(left)


def find_common(left: tuple[Call, ...], right: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return the calls of the first side that the other makes as well."""
    missing = set(map(id, find_surplus(left, right)))
    return tuple(each for each in left if id(each) not in missing)


def join_sides(sides: Sequence[tuple[Call, ...]]) -> tuple[Call, ...]:
    """Return the calls of several sides, those that sides share once."""
    both: tuple[Call, ...] = ()
    for side in sides:
        both += find_surplus(side, both)
    return both


def drop_pairs(found: list[Found]) -> list[Found]:
    """Leave out what the other ranks make as well, below the opposite question elsewhere in the function.

    ``if rank != 0: barrier()``, work, ``if rank == 0: barrier()`` lets rank 0 go first. Of what the
    members of a list do, only the making of a group is kept.
    """
    kept: dict[int, Found] = {}
    alike: dict[tuple[object, str], list[Found]] = {}
    for each in found:
        if each.difference.origin == MEMBER and each.call.operation not in GROUPS:
            continue
        others = alike.setdefault((each.difference.key, each.call.identity), [])
        spend(1 + len(others))
        for other in others:
            if other.difference.positive != each.difference.positive and other.guard is not each.guard:
                del kept[id(other)]
                others.remove(other)
                break
        else:
            kept[id(each)] = each
            others.append(each)
    return list(kept.values())


def is_met_outside(found: Found, scope: Scope, ranks: RankReader) -> bool:
    """Whether the function around a closure makes the call for the ranks that the closure leaves out.

    Args:
        found: what one side of a test in the closure makes.
        scope: the closure, or a function that is none.
        ranks: what is about ranks in the files.
    """
    around = scope.outer
    if around is None or isinstance(around.node, (ast.Module, ast.ClassDef)):
        return False
    for node in own_nodes(around.node):
        difference = ranks.read(node.test, around) if isinstance(node, ast.If) else None
        if not isinstance(node, ast.If) or difference is None or difference.key != found.difference.key:
            continue
        other = node.orelse if difference.positive == found.difference.positive else node.body
        calls = (call for each in other for call in ast.walk(each) if isinstance(call, ast.Call))
        if any(name_collective(call, around, ranks.files) == found.call.operation for call in calls):
            return True
    return False


def tell_uneven(found: Iterable[Found]) -> list[UnevenCall]:
    """Make one row of all that is uneven below one guard in one way."""
    groups: dict[tuple[int, str, bool], list[Found]] = {}
    for each in found:
        makes_group = each.call.operation in GROUPS
        groups.setdefault((id(each.guard), each.kind, makes_group), []).append(each)
    rows = []
    for group in groups.values():
        places: dict[int, Found] = {}
        for each in sorted(
            group, key=lambda one: (getattr(one.call.node, "lineno", 0), not one.call.certain)
        ):
            places.setdefault(getattr(each.call.node, "lineno", 0), each)
        first, *others = places.values()
        call = first.call
        rows.append(
            UnevenCall(
                operation=call.operation,
                call=call.scope.place(call.node),
                guard=call.scope.place(first.guard),
                kind=first.kind,
                test=_shorten(ast.unparse(first.test)),
                origin=first.difference.origin,
                traced=first.difference.traced,
                certain=call.certain and first.difference.certain,
                inner=tuple(scope.place(node) for node, scope in call.inner),
                more=tuple(call.scope.place(each.call.node) for each in others),
            )
        )
    return rows


def _shorten(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
