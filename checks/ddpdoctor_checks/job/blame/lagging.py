"""How far each rank had come, by what NCCL's watchdogs print when a call times out."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence import RankSet
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis

STATUS = "nccl-work-status"
"""Entry of the table of texts: last work enqueued and last work completed on a group."""
MOST_CALLS = 1 << 40
"""Calls that no job makes: torch 2.3 prints larger numbers where it means that there was none."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Ranks that never made the call in which others wait."""

    ranks: RankSet
    number: int
    """Sequence number of the call."""
    enqueued: dict[int, int]
    """Rank -> last work that it asked for on the group."""
    inside: RankSet = field(default_factory=RankSet)
    """Of the ranks, those that had started the call, as torch 2.14 and later say."""


def find_lag(diagnosis: Diagnosis) -> Lag | None:
    """Return who is behind; None where the watchdogs do not tell, or tell that nobody is.

    Where some ranks have completed call n, all have made it, and they wait in n + 1. A rank whose last call is n or
    earlier has not come, or is blocked inside: torch counts a call only when NCCL has returned from it. Numbers are
    those of one group, so only the group is judged of which most ranks speak. Numbers that cannot be are left out.
    """
    groups: dict[str, dict[int, tuple[int, int]]] = {}
    started: dict[int, int] = {}
    for view in diagnosis.views.ranks:
        for text in view.texts:
            if text.entry != STATUS or view.rank is None or view.attempt != diagnosis.attempt:
                continue
            status = int(text.groups["enqueued"]), int(text.groups["completed"])
            if not -1 <= status[1] <= status[0] <= MOST_CALLS:
                continue
            started[view.rank] = int(text.groups.get("started", "-1"))
            groups.setdefault(text.groups.get("group", "0"), {})[view.rank] = status
    if not groups:
        return None
    known = max(groups.values(), key=len)
    number = max(completed for _, completed in known.values()) + 1
    behind = RankSet(rank for rank, (enqueued, _) in known.items() if 0 <= enqueued < number)
    if not behind or len(behind) == len(known):
        return None
    inside = RankSet(rank for rank in behind if started.get(rank, -1) == number)
    return Lag(behind, number, {rank: enqueued for rank, (enqueued, _) in sorted(known.items())}, inside)
