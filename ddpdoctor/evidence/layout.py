"""How a job's ranks share out model and data: what sets of ranks are to each other (`ddpdoctor.facts.strategies`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.facts import strategies


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension along which ranks are arranged."""

    strategy: str
    """Name of a strategy; group where only its process groups are known."""
    name: str
    """Name of the mesh's dimension; empty where it has none."""
    role: str
    """data, tensor, pipeline, expert, context or unknown: what the ranks of one of its groups are to each other."""
    groups: tuple[RankSet, ...]
    """Sets of ranks that differ in this coordinate alone."""


@dataclass(frozen=True, slots=True)
class Layout:
    """All dimensions that were seen."""

    axes: tuple[Axis, ...] = ()

    def list_groups(self, *roles: str) -> list[RankSet]:
        """Return the sets of ranks that dimensions of some roles connect."""
        return _connect(group for axis in self.axes if axis.role in roles for group in axis.groups)

    def part(self, ranks: RankSet) -> list[RankSet]:
        """Part ranks into those that strategies connect with each other; a pipeline connects none."""
        known = [
            axis
            for axis in self.axes
            if axis.role != strategies.PIPELINE
            and (axis.role == strategies.DATA or axis.strategy in strategies.STRATEGIES)
        ]
        own = [[rank for rank in group if rank in ranks] for axis in known for group in axis.groups]
        return _connect([RankSet([rank]) for rank in ranks] + [RankSet(each) for each in own if each])

    def is_known(self, ranks: RankSet) -> bool:
        """Whether it can be told of all of some ranks which of them must read different samples.

        So where a dimension of data is known, or none whose role is not.
        """
        smaller = [axis for axis in self.axes if any(len(group) < len(ranks) for group in axis.groups)]
        data = {rank for group in self.list_groups(strategies.DATA) for rank in group}
        return not smaller or all(rank in data for rank in ranks)


def join_layouts(layouts: Iterable[Layout]) -> Layout:
    """Return what several nodes have seen of one layout."""
    joined: dict[tuple[str, str, str], Axis] = {}
    for layout in layouts:
        for axis in layout.axes:
            key = axis.strategy, axis.name, axis.role
            known = joined.get(key)
            groups = (*(known.groups if known else ()), *axis.groups)
            joined[key] = replace(axis, groups=tuple(dict.fromkeys(groups)))
    return Layout(tuple(joined.values()))


def make_layout(seen: Iterable[tuple[str, str, Sequence[int]]]) -> Layout:
    """Return the layout that ranks wrote down.

    A group whose ranks a strategy is known to use says nothing more. The role of any other is that of its name.

    Args:
        seen: strategy or "group", name of the dimension, ranks.
    """
    told = {(how, name, RankSet(ranks)) for how, name, ranks in seen}
    used = {ranks for how, _, ranks in told if how in strategies.STRATEGIES}
    found: dict[tuple[str, str, str], list[RankSet]] = {}
    for how, name, ranks in sorted(told, key=lambda each: (each[0], each[1], each[2].ranges)):
        known = strategies.STRATEGIES.get(how)
        if known is None and ranks in used:
            continue
        by_name = strategies.find_role(name)
        role = by_name if known is None else known.role
        if known is strategies.DTENSOR and by_name not in (strategies.UNKNOWN, strategies.DATA):
            role = by_name  # experts are DTensors too
        found.setdefault((how, name, role), []).append(ranks)
    return Layout(tuple(Axis(*key, groups=tuple(groups)) for key, groups in found.items()))


def _connect(groups: Iterable[RankSet]) -> list[RankSet]:
    """Join sets that share a rank."""
    parts: list[set[int]] = []
    for group in groups:
        ranks = set(group)
        for part in [each for each in parts if each & ranks]:
            parts.remove(part)
            ranks |= part
        parts.append(ranks)
    return sorted((RankSet(part) for part in parts), key=lambda part: part.ranges)
