"""Sends and receives that wait whose other side is never made."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import name_points
from ddpdoctor.judge import EvidenceItem, Fix
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words
from ddpdoctor_checks.job.hangs.reading import (
    Reading,
    ranks_of,
)
from ddpdoctor_checks.job.hangs.sides import (
    MOST_SIDES,
    part_by_line,
    say_place,
    say_sides,
)
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.verdicts import Deadlock


def judge_points(reading: Reading, points: Sequence[Place]) -> Deadlock:
    """Sends and receives wait whose other side is never made."""
    first = points[0]
    assert first.call is not None
    waiting = {place.rank for place in points}
    peers = {rank for place in points for rank in reading.need(place).ranks}
    others = [place for place in reading.places if place.rank in peers and place.rank not in waiting]
    told = capitalise(join_words(say_place(place) for place in points[:MOST_SIDES]))
    fix = [
        Fix(
            "every send needs its receive on the other rank: same tag and group, and an order in which one side sends "
            "while the other receives",
            code="if rank % 2 == 0:\n    dist.send(out, peer); dist.recv(inp, peer)\nelse:\n"
            "    dist.recv(inp, peer); dist.send(out, peer)",
        ),
        Fix("or post both at once", code="for work in dist.batch_isend_irecv(ops):\n    work.wait()"),
    ]
    if not others:
        both = f"{told}: each waits for the other's counterpart, and no rank is left to issue it"
        return Deadlock("COL011", f"{both}.", ranks_of(points), RankSet(), [points], fix=fix)
    message = f"{told}, but {say_sides(others)}: its counterpart is never issued."
    return Deadlock(
        "COL011",
        message,
        ranks_of(others),
        ranks_of(points),
        [*part_by_line(others), points],
        blamed=len(part_by_line(others)),
        fix=fix,
        seen=_count_points(reading, points),
    )


_SIDES = {True: ("send", "to", "receive", "from"), False: ("receive", "from", "send", "to")}


def _count_points(reading: Reading, points: Sequence[Place]) -> list[EvidenceItem]:
    """Return how many messages each side has begun of those that wait."""
    items = []
    for place in points[:MOST_SIDES]:
        call = place.call
        if call is None or call.peer is None or not call.ordinal:
            continue
        other = reading.get(call.peer)
        sends = "send" in call.op
        series = name_points(not sends, place.rank, call.tag or 0, call.group)
        made = other.stand.counts.get(series, 0) if other is not None else 0
        mine, side, theirs, back = _SIDES[sends]
        items.append(
            EvidenceItem(
                "count",
                f"rank {place.rank} has issued {count_of(call.ordinal, mine)} {side} rank {call.peer}, and "
                f"rank {call.peer} {count_of(made, theirs)} {back} it",
            )
        )
    return items
