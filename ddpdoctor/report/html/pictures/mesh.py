"""The device mesh: where each rank is along the dimensions that share out model and data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.layout import Axis, join_layouts
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.words import count, join_words

RANKS_SHOWN = 256
SHORT = {
    "averaged by the program": "data",
    "DistributedDataParallel": "DDP",
    "FullyShardedDataParallel": "FSDP",
    "parallelize_module": "tensor",
}
"""Names of strategies, for dimensions that have none of their own."""
ROLES = {
    "data": "data parallel",
    "tensor": "tensor parallel",
    "pipeline": "pipeline",
    "expert": "expert parallel",
    "context": "context parallel",
    "unknown": "group",
}


@dataclass(frozen=True, slots=True)
class MeshView:
    """Ranks as a table: along its columns the last dimension, along its rows the others."""

    summary: str
    axes: tuple[tuple[str, str], ...]
    """Name of a dimension, and what it is."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, bool], ...]], ...]
    """Coordinates, and the ranks there with whether the verdict names one of them."""


def view_mesh(evidence: Evidence, blamed: RankSet, caps: Caps) -> MeshView | None:
    """Return the mesh; None where the job has fewer than two dimensions, or what is known of them is no mesh."""
    axes = _choose(join_layouts(each.layout for each in evidence.training).axes)
    if len(axes) < 2:
        return None
    names = [axis.name or SHORT.get(axis.strategy, axis.strategy) for axis in axes]
    places = {
        rank: tuple(_find(axis, rank) for axis in axes)
        for rank in RankSet().union(*(group for axis in axes for group in axis.groups))
    }
    sizes = [len(axis.groups[0]) for axis in axes]
    summary = f"{count(len(places), 'rank')} as " + " × ".join(
        f"{name} {size}" for name, size in zip(names, sizes, strict=True)
    )
    known = tuple((name, _explain(axis)) for name, axis in zip(names, axes, strict=True))
    whole = {rank: place for rank, place in places.items() if None not in place}
    if len(set(whole.values())) != len(places) or len(places) > RANKS_SHOWN:
        if len(places) > RANKS_SHOWN:
            caps.note(f"mesh: {len(places):,} ranks are not drawn one by one")
        return MeshView(summary, known, (), ())
    at = {place: rank for rank, place in whole.items()}
    ranges = [range(size) for size in sizes]
    rows = []
    for head in itertools.product(*ranges[:-1]):
        cells = []
        for last in ranges[-1]:
            rank = at.get((*head, last))
            cells.append(("" if rank is None else str(rank), rank is not None and rank in blamed))
        label = join_words(f"{name} {number}" for name, number in zip(names, head, strict=False))
        rows.append((label.replace(" and ", ", "), tuple(cells)))
    return MeshView(summary, known, tuple(f"{names[-1]} {number}" for number in ranges[-1]), tuple(rows))


def _choose(axes: tuple[Axis, ...]) -> list[Axis]:
    """Return the dimensions that a mesh is made of: each set of groups once, those that part the ranks."""
    found: dict[frozenset[RankSet], Axis] = {}
    everyone = RankSet().union(*(group for axis in axes for group in axis.groups))
    for axis in axes:
        groups = frozenset(group for group in axis.groups if len(group) > 1)
        even = len({len(group) for group in groups}) == 1
        apart = sum(map(len, groups)) == len(RankSet().union(*groups)) == len(everyone)
        if groups and even and apart and (groups not in found or (axis.name and not found[groups].name)):
            found[groups] = axis
    ordered = sorted(found.values(), key=lambda axis: len(axis.groups))
    whole = [axis for axis in ordered if len(axis.groups[0]) < len(everyone)]
    return whole


def _find(axis: Axis, rank: int) -> int | None:
    return next((list(group).index(rank) for group in axis.groups if rank in group), None)


def _explain(axis: Axis) -> str:
    role = ROLES.get(axis.role, axis.role)
    return (
        "process group"
        if axis.strategy == "group" and axis.role == "unknown"
        else f"{role} ({axis.strategy})"
    )
