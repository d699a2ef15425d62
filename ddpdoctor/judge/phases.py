"""Which phase of the program its ranks are or were in at the end of the job: said beside the root cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.job import PHASE
from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.judge.finding import EvidenceItem, Finding

MOST = 4
"""Phases that are named; ranks are seldom in more."""


def add_phases(findings: Sequence[Finding], evidence: Evidence) -> list[Finding]:
    """Return the findings of a job, the root cause with the phases that the program has named.

    Args:
        findings: root cause first.
        evidence: of the job.
    """
    if not findings or findings[0].severity != "error" or findings[0].state != "active":
        return list(findings)
    items = tuple(
        EvidenceItem(PHASE, f"in {name!r}, as the program calls it", RankSet(ranks))
        for name, ranks in _list_phases(evidence)[:MOST]
    )
    return [replace(findings[0], evidence=(*findings[0].evidence, *items)), *findings[1:]]


def _list_phases(evidence: Evidence) -> list[tuple[str, list[int]]]:
    """Return phases with their ranks, the one of fewest ranks first: it is the odd one."""
    ranks = [each for each in evidence.processes if each.is_rank and each.rank is not None]
    last = max((each.attempt for each in ranks), default=0)
    found: dict[str, list[int]] = defaultdict(list)
    for each in ranks:
        name = _last(m.detail for m in each.milestones if m.name == PHASE)
        if each.attempt == last and each.rank is not None and name:
            found[name].append(each.rank)
    return sorted(found.items(), key=lambda item: (len(item[1]), item[1]))


def _last(names: Iterable[str | None]) -> str | None:
    return next(reversed(list(names)), None)
