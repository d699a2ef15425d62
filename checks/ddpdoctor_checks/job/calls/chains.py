"""Waits between process groups, such as those of a mesh, followed to the ranks that wait for no other."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import RankSet
from ddpdoctor_checks.job.calls.sequences import GroupCalls
from ddpdoctor_checks.job.calls.votes import Difference

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
