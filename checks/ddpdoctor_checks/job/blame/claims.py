"""What ranks claim that cannot be: a number that another process has, worlds of different size."""

from __future__ import annotations

import itertools

from ddpdoctor_checks.common.wording import find_minority, fold_values
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure, Level
from ddpdoctor_checks.job.blame.views import View

EXPLAINED = frozenset({"NET001", "NET006", "COL005", "COL008", "BKD002", "NET011"})
"""Codes that a rank which exists twice brings about, or a world that is larger for some: a second process takes the
port or the other's place, and some wait for ranks that never come."""


def judge_claims(diagnosis: Diagnosis) -> None:
    """Make ranks that exist twice, or worlds of different size, the cause where what was found follows from them."""
    if diagnosis.cause is not None and diagnosis.cause.code not in EXPLAINED:
        return
    if diagnosis.cause is None and diagnosis.reason is None:
        return
    double = find_double(diagnosis)
    if double:
        _blame(
            diagnosis,
            "ENV002",
            [
                (view, f"process {view.pid} on {diagnosis.host(view)}")
                for views in double.values()
                for view in views
            ],
        )
        return
    sizes = find_sizes(diagnosis)
    groups = fold_values({rank: str(size) for rank, (size, _) in sizes.items()})
    if len(groups) > 1:
        odd = find_minority(groups)
        _blame(
            diagnosis,
            "ENV003",
            [(view, f"world size {size}") for rank, (size, view) in sorted(sizes.items()) if rank in odd],
        )


def _blame(diagnosis: Diagnosis, code: str, who: list[tuple[View, str]]) -> None:
    failures = [Failure(view, Level.STATUS, code, words) for view, words in who]
    diagnosis.cause = Group(code, Level.STATUS, failures, failures[0])
    diagnosis.reason = None


def find_sizes(diagnosis: Diagnosis) -> dict[int, tuple[int, View]]:
    """Return rank -> the size of the world that it wants to join, and its process."""
    found = {}
    for view in _own_ranks(diagnosis):
        if view.rank is not None and view.process is not None and view.process.world_size:
            found[view.rank] = (view.process.world_size, view)
    return found


def _own_ranks(diagnosis: Diagnosis) -> list[View]:
    """Return the ranks; a process that a rank started inherits its number and is none."""
    mine = [v for v in diagnosis.views.ranks if v.attempt == diagnosis.attempt and v.rank is not None]
    known = {(view.node, view.pid) for view in mine}
    return [v for v in mine if v.process is not None and (v.node, v.process.parent) not in known]


def find_double(diagnosis: Diagnosis) -> dict[int, list[View]]:
    """Return rank -> its processes, for ranks with several that lived at one time."""
    by_rank: dict[int, list[View]] = {}
    for view in _own_ranks(diagnosis):
        if view.rank is not None:
            by_rank.setdefault(view.rank, []).append(view)
    return {rank: views for rank, views in by_rank.items() if len(views) > 1 and _overlap(diagnosis, views)}


def _overlap(diagnosis: Diagnosis, views: list[View]) -> bool:
    """Whether two of them lived at one time; on nodes whose clocks differ it takes more than the tolerance."""
    spans = []
    for view in views:
        process = view.process
        if process is None or process.started is None:
            continue
        start = diagnosis.clock.seconds(view.node, process.started)
        end = diagnosis.clock.seconds(view.node, process.ended) if process.ended is not None else float("inf")
        spans.append((start, end, view.node))
    spans.sort()
    return any(
        after[0] + diagnosis.clock.tolerance(before[2], after[2]) < before[1]
        for before, after in itertools.pairwise(spans)
    )
