"""How far each rank had come, by what NCCL's watchdogs print when a call times out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence import RankSet
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis
from ddpdoctor_checks.job.blame.failures import Failure

STATUS = "nccl-work-status"
"""Entry of the table of texts: last work enqueued and last work completed on a group."""
MOST_CALLS = 1 << 40
"""Calls that no job makes: torch 2.3 prints larger numbers where it means that there was none."""
BUSY = "work-of-one-rank"
"""Entry of work that one rank does for all, and that others wait for."""
BUSY_LINES = 40
"""How many lines before the first complaint such a line may stand: further up, the work was done before they waited."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Ranks that never made the call in which others wait."""

    ranks: RankSet
    number: int
    """Sequence number of the call."""
    enqueued: dict[int, int]
    """Rank -> last work that it asked for on the group."""
    inside: RankSet = field(default_factory=RankSet)
    """Those of ``ranks`` that had started the call, as torch 2.14 and later say."""


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


VARYING = frozenset(
    {"ALLTOALL", "ALLTOALL_BASE", "SEND", "RECV", "SCATTER", "GATHER", "COALESCED", "UNKNOWN"}
)
"""Operations whose sizes may differ between ranks, or that are several."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks that timed out in another call than most."""

    ranks: RankSet
    groups: dict[str, str]
    """Two ranks and their calls, named as those of torch's own comparison are."""


def find_mismatch(late: Sequence[Failure]) -> Mismatch | None:
    """Return the ranks that timed out in another operation, or with another size, than most did under one number.

    None where that is not so, or where several groups may be in play: each counts for itself, and the line on a timeout
    does not name its group.
    """
    calls: dict[str, dict[int, tuple[str, str]]] = {}
    groups: set[str] = set()
    for each in late:
        sequence, op = each.groups.get("sequence"), each.groups.get("op")
        said = [text for text in each.view.texts if text.entry == STATUS]
        groups |= {text.groups["group"] for text in said if "group" in text.groups}
        if sequence is not None and op is not None and each.rank is not None:
            size = "" if op in VARYING else each.groups.get("numel", "")
            calls.setdefault(sequence, {})[each.rank] = (op, size)
    if len(calls) != 1 or len(groups) > 1:
        return None
    ((number, known),) = calls.items()
    counted = Counter(known.values()).most_common()
    two = len(known) == 2 and bool(groups)  # of which the log says that they speak of one group
    if len(counted) < 2 or (not two and counted[0][1] <= counted[1][1]):
        return None
    odd = RankSet(rank for rank, call in known.items() if call != counted[0][0])
    one = max(odd) if two else min(odd)
    other = min(rank for rank in known if rank not in odd)
    if two:
        odd = RankSet(known)  # of two nobody can tell which is wrong
    named = {
        rank: f"{op} #{number}" + (f" of {size} elements" if size else "")
        for rank, (op, size) in known.items()
    }
    return Mismatch(odd, {"rank": str(one), "own": named[one], "other": str(other), "others": named[other]})


def find_busy(diagnosis: Diagnosis, heard: RankSet, timed_out: Sequence[str]) -> int | None:
    """Return the rank that did something long while the others waited; None where no line says so.

    Work that one rank does for all is rank 0's, unless the line has another's prefix.

    Args:
        diagnosis: of the job; its texts are read.
        heard: ranks that complained.
        timed_out: entries of ranks that waited to the end of a limit.
    """
    placed = [(text, text.line) for text in diagnosis.evidence.texts if text.line is not None]
    first: dict[str | None, int] = {}
    for text, line in placed:
        if text.entry in timed_out:
            first[text.file] = min(line, first.get(text.file, line))
    busy = [each for each in placed if each[0].entry == BUSY and each[0].file in first]
    ranks = [text.rank or 0 for text, line in busy if line >= first[text.file] - BUSY_LINES]
    return next((rank for rank in ranks if rank not in heard), None)
