"""What the recorders show of a difference: its lines, what each side called last, the details."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.collectives import RETIRED, STATES, RecordedCall
from ddpdoctor.judge import EvidenceItem, Where
from ddpdoctor_checks.common.frames import user_frames
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import count_of
from ddpdoctor_checks.job.calls.last import describe_call
from ddpdoctor_checks.job.calls.matching import Matching
from ddpdoctor_checks.job.calls.votes import Difference, Side

MOST_SIDES = 4
"""Sides that a sentence names; ``details`` has up to `MOST_ROWS`."""
MOST_ROWS = 32
MOST_CALLERS = 2


def name_call(call: RecordedCall, number: int) -> str:
    """Return ``all_reduce #128``."""
    return f"{call.op} #{number}"


def name_site(site: Frame | None) -> str:
    """Return `` (train.py:88)``, or nothing."""
    return f" ({site.file}:{site.line})" if site is not None else ""


def list_sides(difference: Difference, *, called: bool) -> list[Side]:
    """Return the sides that have made their next call, or those that have not."""
    return [side for side in difference.sides if (side.call is not None) is called]


def list_places(
    matching: Matching, difference: Difference, culprits: RankSet | None = None
) -> tuple[Where, ...]:
    """Return both lines, those at fault first with their callers; where nobody is, all sides weigh the same."""
    blamed = set(difference.culprits if culprits is None else culprits)
    guilty: list[Where] = []
    others: list[Where] = []
    for side in difference.sides[:MOST_ROWS]:
        number = side.call if side.call is not None else side.last
        stack = matching.log.frames_of(matching.log.calls[number]) if number is not None else ()
        own = user_frames(stack)
        if not own:
            continue
        if blamed and not blamed.issuperset(side.ranks):
            others.append(in_frame(own[0], side.ranks, "victim"))
            continue
        guilty.append(in_frame(own[0], side.ranks, "culprit"))
        guilty += [in_frame(frame, side.ranks, "caller") for frame in own[1 : 1 + MOST_CALLERS]]
    return (*guilty, *others)


def list_seen(matching: Matching, difference: Difference) -> list[EvidenceItem]:
    """Return what each side called last, and of how many recorders that is."""
    log = matching.log
    rows = sum(len(rank.calls) for rank in log.ranks)
    dumps = f"{count_of(len(log.ranks), 'dump')} with {count_of(rows, 'call')}"
    seen = [EvidenceItem("recorder", dumps, RankSet(rank.rank for rank in log.ranks))]
    for side in difference.sides[:MOST_SIDES]:
        number = side.call if side.call is not None else side.last
        if number is None:
            continue
        at = difference.number if side.call is not None else side.last_number
        text = f"{'call' if side.call is not None else 'last call'} #{at}: {describe_call(log.calls[number])}"
        state = _state_of(difference, side, at)
        seen.append(EvidenceItem("recorder", f"{text}{state}", side.ranks, _file_of(matching, side)))
    if difference.group.absent:
        seen.append(EvidenceItem("recorder", "left no dump", difference.group.absent))
    if matching.stale:
        seen.append(
            EvidenceItem(
                "recorder", "dumped before the others, and contain nothing about the end", matching.stale
            )
        )
    if not any(call.stack >= 0 for call in log.calls):
        seen.append(EvidenceItem("recorder", "JSON dumps have no call sites: the pickled ones have"))
    return seen


def _state_of(difference: Difference, side: Side, number: int) -> str:
    rank = next(iter(side.ranks))
    line = difference.group.lines.get(rank)
    state = line.state(number) if line is not None else None
    if state is None:
        return ""
    return f", {STATES[state & ~RETIRED]}" + (" and retired" if state & RETIRED else "")


def _file_of(matching: Matching, side: Side) -> tuple[str, int | None] | None:
    first = next(iter(side.ranks))
    file = next((rank.file for rank in matching.log.ranks if rank.rank == first), None)
    return (file, None) if file else None


def make_details(matching: Matching, difference: Difference) -> dict[str, Any]:
    """Return the difference as plain data: its group, its number, its sides."""
    rows: list[dict[str, Any]] = []
    for side in difference.sides[:MOST_ROWS]:
        number = side.call if side.call is not None else side.last
        rows.append(
            {
                "ranks": str(side.ranks),
                "called": side.call is not None,
                "call": describe_call(matching.log.calls[number]) if number is not None else None,
                "number": difference.number if side.call is not None else side.last_number,
                "where": f"{side.site.file}:{side.site.line}" if side.site is not None else None,
            }
        )
    return {
        "kind": difference.kind,
        "group": difference.group.name,
        "sequence": difference.number,
        "sides": rows,
        "others": _tell_others(matching.differences[1:]),
    }


def _tell_others(others: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return the first differences of further groups, which mostly follow from the first."""
    return [
        {"kind": each.kind, "group": each.group.name, "sequence": each.number, "ranks": str(each.culprits)}
        for each in others[:MOST_ROWS]
    ]
