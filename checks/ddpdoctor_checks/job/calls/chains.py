"""Waits between process groups, such as those of a mesh, followed to the ranks that wait for no other."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import RankSet
from ddpdoctor_checks.job.calls.sequences import Essences, GroupCalls
from ddpdoctor_checks.job.calls.votes import Difference, Side, place_of

DIMENSIONS = (
    ("tensor parallel", re.compile(r"(?:^|[^a-z])(?:tp|mp)(?:$|[^a-z])|tensor", re.IGNORECASE)),
    ("pipeline parallel", re.compile(r"(?:^|[^a-z])pp(?:$|[^a-z])|pipeline", re.IGNORECASE)),
    ("expert parallel", re.compile(r"(?:^|[^a-z])ep(?:$|[^a-z])|expert", re.IGNORECASE)),
    ("context parallel", re.compile(r"(?:^|[^a-z])cp(?:$|[^a-z])|context|sequence_parallel", re.IGNORECASE)),
    (
        "data parallel",
        re.compile(r"(?:^|[^a-z])(?:dp|fsdp|hsdp)(?:$|[^a-z])|data|replicate|shard", re.IGNORECASE),
    ),
)
"""Dimensions of a mesh, and how Megatron, DeepSpeed and torch's DeviceMesh call their groups."""


def find_held(groups: Sequence[GroupCalls]) -> RankSet:
    """Return the ranks that wait in a collective of some group."""
    return RankSet(
        rank
        for group in groups
        for rank, line in group.lines.items()
        if line.numbers and line.is_over(line.last) is False
    )


def narrow(difference: Difference, held: RankSet, found: Sequence[Difference]) -> Difference:
    """Blame, of the ranks that never came to a call, only those that wait in no other one.

    Where the count of ranks does not tell which side is wrong, that others miss the same ranks in another group does.

    Args:
        difference: of one group.
        held: ranks that wait in some group.
        found: the differences of all groups.
    """
    roots = difference.behind.minus(held)
    if difference.kind != "missing" or not roots:
        return difference
    if roots != difference.behind:
        return replace(difference, culprits=roots)
    missed = any(
        other is not difference and other.kind == "missing" and not roots.minus(other.behind)
        for other in found
    )
    return (
        replace(difference, culprits=roots, sure="medium")
        if missed and not difference.culprits
        else difference
    )


def settle_cycle(
    found: Sequence[Difference], groups: Sequence[GroupCalls], essences: Essences
) -> list[Difference]:
    """Name who left out a line that others passed, where ranks wait for each other in two groups; else no rank.

    Of two ranks that wait for each other one has changed the order of its calls, or left one out. Where each further
    rank that came to the one call has made the other one before, at the same line in a group of its own, the rank
    that did not has left it out. Where these came to it without the other one, although they make the calls of such
    a group, the rank in the other one has issued one more.

    Args:
        found: Differences, the one that explains the others first.
        groups: All groups.
        essences: Of their log.
    """
    first = found[0] if found else None
    if first is None or first.kind != "missing":
        return list(found)
    if first.behind.minus(find_held([group for group in groups if group is not first.group])):
        return list(found)  # some of them wait for no other rank
    open_ = replace(first, culprits=RankSet(), sure="medium")
    for other in found[1:]:
        if other.kind != "missing" or other.waiting != first.behind or other.behind.minus(first.waiting):
            continue
        apart = first.waiting.minus(other.behind)
        passed = _list_passed(other.sides[0], essences)
        if len(apart) > len(other.behind) and not apart.minus(passed):
            cause = replace(other, culprits=other.behind, sure="medium")
            return [cause, open_, *(each for each in found[1:] if each is not other)]
        skipped = (
            other.sides[0].site is not None
            and len(apart) > len(first.behind)
            and not set(apart) & set(passed)
        )
        if skipped and not apart.minus(_list_twins(other, essences)):
            return [replace(first, culprits=first.behind, sure="medium"), *found[1:]]
    return [open_, *found[1:]] if first.culprits else list(found)


def ask_others(difference: Difference, essences: Essences) -> Difference:
    """Let ranks of other groups tell which side of a mismatch is the usual one: the one whose line they made too.

    Args:
        difference: In whose group the count of ranks tells nothing.
        essences: Of its log.
    """
    if difference.kind not in ("mismatch", "apart") or difference.culprits:
        return difference
    usual = [
        side
        for side in difference.sides
        if len(_list_passed(side, essences).minus(difference.group.members))
        > sum(len(each.ranks) for each in difference.sides if each is not side)
    ]
    if len(usual) != 1:
        return difference
    odd = [each for each in difference.sides if each is not usual[0]]
    if any(_list_passed(each, essences).minus(each.ranks) for each in odd):
        return difference
    return replace(difference, culprits=RankSet().union(*(each.ranks for each in odd)), sure="medium")


def _list_passed(side: Side, essences: Essences) -> RankSet:
    """Return the ranks that made a side's operation at the side's line, in whichever group."""
    place = place_of(side.site)
    if place is None or side.call is None:
        return RankSet()
    op, calls = essences.log.calls[side.call].op, essences.log.calls
    alike = {n for n, call in enumerate(calls) if call.op == op and place_of(essences.site((n,))) == place}
    return RankSet(rank.rank for rank in essences.log.ranks if not alike.isdisjoint(rank.calls))


def _list_twins(difference: Difference, essences: Essences) -> RankSet:
    """Return the ranks that made a call at a line of the group's earlier calls, in whichever group."""
    calls = {
        call
        for line in difference.group.lines.values()
        for number, call in zip(line.numbers, line.calls, strict=True)
        if number < difference.number
    }
    sides = (Side(RankSet(), call, essences.site((call,))) for call in calls)
    return RankSet().union(*(_list_passed(side, essences) for side in sides))


def follow(groups: Sequence[GroupCalls], roots: RankSet) -> tuple[RankSet, tuple[GroupCalls, ...]]:
    """Return the ranks that wait for some ranks, directly or through other groups, and the groups in which they do."""
    blocked, used = set(roots), dict[str, GroupCalls]()
    waits = [
        (rank, group, line.last)
        for group in groups
        for rank, line in group.lines.items()
        if line.numbers and line.is_over(line.last) is False
    ]
    grown = True
    while grown:
        grown = False
        for rank, group, number in waits:
            missing = (
                other
                for other in group.members
                if other in blocked and (other not in group.lines or group.lines[other].last < number)
            )
            if rank not in blocked and any(True for _ in missing):
                blocked.add(rank)
                used.setdefault(group.name, group)
                grown = True
    return RankSet(blocked).minus(roots), tuple(used.values())


def name_dimension(group: GroupCalls) -> str:
    """Return which dimension of the mesh a group is of: by its name, else by the distance of its ranks."""
    named = f"{group.description} {group.name}"
    for words, pattern in DIMENSIONS:
        if pattern.search(named):
            return words
    ranks = list(group.members)
    steps = {after - before for before, after in itertools.pairwise(ranks)}
    return (
        f"the dimension of stride {steps.pop()}"
        if len(ranks) > 1 and len(steps) == 1 and not group.default
        else ""
    )
