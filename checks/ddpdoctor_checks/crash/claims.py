"""Ranks that two processes claim at one time."""

from __future__ import annotations

import itertools

from ddpdoctor_checks.crash.diagnosis import Diagnosis, Group
from ddpdoctor_checks.crash.failures import Failure, Level
from ddpdoctor_checks.crash.views import View

EXPLAINED = frozenset({"NET001", "NET006", "COL005", "COL008", "BKD002", "NET011"})
"""Codes that a rank which exists twice brings about: its second process takes the port or the other's place."""


def judge_claims(diagnosis: Diagnosis) -> None:
    """Make ranks that exist twice the cause, where what was found so far follows from them."""
    if diagnosis.cause is not None and diagnosis.cause.code not in EXPLAINED:
        return
    if diagnosis.cause is None and diagnosis.reason is None:
        return
    double = find_double(diagnosis)
    if not double:
        return
    failures = [
        Failure(view, Level.STATUS, "ENV002", f"process {view.pid} on {diagnosis.host(view)}")
        for views in double.values()
        for view in views
    ]
    diagnosis.cause = Group("ENV002", Level.STATUS, failures, failures[0])
    diagnosis.reason = None


def find_double(diagnosis: Diagnosis) -> dict[int, list[View]]:
    """Return rank -> its processes, for ranks with several that lived at one time."""
    mine = [v for v in diagnosis.views.ranks if v.attempt == diagnosis.attempt and v.rank is not None]
    known = {(view.node, view.pid) for view in mine}
    by_rank: dict[int, list[View]] = {}
    for view in mine:
        process = view.process
        # A process that a rank started inherits its number; it is no second rank.
        if process is not None and view.rank is not None and (view.node, process.parent) not in known:
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
