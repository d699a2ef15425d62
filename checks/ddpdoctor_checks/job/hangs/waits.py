"""Ranks that can never go on: who waits for whom, back to the call at which they part, and the finding on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpdoctor.judge import EvidenceItem, Finding, Where
from ddpdoctor_checks.common.frames import user_frames
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import count_of, format_age, name_set
from ddpdoctor_checks.job.hangs.detours import find_detour
from ddpdoctor_checks.job.hangs.exchanges import judge_points
from ddpdoctor_checks.job.hangs.flight_recorder import list_recorded
from ddpdoctor_checks.job.hangs.needs import call_at
from ddpdoctor_checks.job.hangs.ras import quote_ras
from ddpdoctor_checks.job.hangs.reading import MAKERS, Reading, largest, lines_called, ranks_of
from ddpdoctor_checks.job.hangs.sides import called_at, guard_of, op_of, site_of, spot_of
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.verdicts import (
    Deadlock,
    judge_gone,
    judge_makers,
    judge_mismatch,
    judge_missing,
)

MOST_CALLERS = 2
LAUNCHER_S = 45.0
"""A launcher that sees a rank fail ends the others, or starts all anew; torchrun gives them 30 s to end
(torch/distributed/run.py, --shutdown-timeout). What is left to it for so long is no hang."""
MOST_FOLLOWED = 64
"""Calls of ranks in a cycle that are followed."""
MOST_BACK = 16
"""Steps back to the call at which ranks part."""


def find_deadlock(reading: Reading) -> Deadlock | None:
    """Return what holds the stuck ranks, None where none is."""
    ranks = set(reading.stuck or reading.likely)
    stuck = [place for place in reading.places if place.rank in ranks]
    if not stuck:
        return None
    deadlock = _judge(reading, stuck)
    if deadlock is not None and not reading.stuck:
        deadlock.proof, deadlock.confidence = False, "medium"
    if deadlock is not None and deadlock.role != "cause" and reading.look.still_s < LAUNCHER_S:
        deadlock.proof = False
    return deadlock


def _judge(reading: Reading, stuck: Sequence[Place]) -> Deadlock | None:
    for_gone = [place for place in stuck if any(map(_is_gone, _list_needed(reading, place)))]
    if for_gone:
        main = largest(for_gone)
        return judge_gone(main, [place for place in _list_needed(reading, main[0]) if _is_gone(place)])
    stuck = _find_core(reading, stuck)
    points = [place for place in stuck if _is_point(place)]
    if points:
        return judge_points(reading, points)
    main = _go_back(reading, largest(stuck), stuck)
    need = reading.need(main[0])
    needed = _list_needed(reading, main[0])
    ranks = {place.rank for place in stuck}
    waiting = [
        _go_to(place, main[0]) if place.rank in need.differing else place
        for place in needed
        if place.rank in ranks
    ]
    if not waiting:
        return None
    joined = _find_joined(main, waiting, stuck)
    waiting = _follow(reading, joined, waiting, stuck)
    if op_of(main[0]) in MAKERS or any(op_of(place) in MAKERS for place in waiting):
        return judge_makers(main, waiting)
    differing = [place for place in waiting if place.rank in need.differing]
    if differing and not _is_missing(joined, differing):
        mismatch = judge_mismatch(joined, differing)
        told = {place.rank: place for place in (*joined, *differing)}
        undecided = len(mismatch.culprits) == len(told)
        return (find_detour(list(told.values())) if undecided else None) or mismatch
    return judge_missing(joined, waiting)


def _is_point(place: Place) -> bool:
    """Whether a rank waits in a send or receive, or for one that it asked for earlier."""
    call = place.call
    return place.kind == "point" or (place.kind == "work" and call is not None and call.point_to_point)


def _is_gone(place: Place) -> bool:
    return place.kind == "gone"


def _list_needed(reading: Reading, place: Place) -> list[Place]:
    """Return those whom a waiting rank needs, of those that were seen."""
    ranks = sorted(reading.need(place).ranks)
    return [needed for rank in ranks if (needed := reading.get(rank)) is not None]


def _find_core(reading: Reading, stuck: Sequence[Place]) -> list[Place]:
    """Return the stuck ranks without those for which no other one waits: these are victims, whatever they wait in."""
    classes: dict[tuple[object, ...], list[Place]] = {}
    for place in stuck:
        classes.setdefault(place.key, []).append(place)
    needs = {key: reading.need(members[0]).ranks for key, members in classes.items()}
    wanted = Counter(rank for ranks in needs.values() for rank in ranks)
    key_of = {place.rank: place.key for place in stuck}
    todo = [key for key, members in classes.items() if not any(wanted[place.rank] for place in members)]
    while todo:
        key = todo.pop()
        del classes[key]
        wanted.subtract(needs[key])
        for rank in needs[key]:
            other = key_of.get(rank)
            if (
                other in classes
                and other not in todo
                and not any(wanted[each.rank] for each in classes[other])
            ):
                todo.append(other)
    return [place for place in stuck if place.key in classes] or list(stuck)


def _follow(
    reading: Reading, main: Sequence[Place], waiting: Sequence[Place], stuck: Sequence[Place]
) -> list[Place]:
    """Return those that are waited for, with those that these wait for in turn: a cycle has more than two sides."""
    by_rank = {place.rank: place for place in stuck}
    found = {place.rank: place for place in waiting}
    known = {place.rank for place in main}
    todo = list({place.key: place for place in waiting}.values())
    for _ in range(MOST_FOLLOWED):
        if not todo:
            break
        new = [
            by_rank[rank]
            for rank in sorted(reading.need(todo.pop()).ranks)
            if rank in by_rank and rank not in found and rank not in known
        ]
        found.update((place.rank, place) for place in new)
        todo += {place.key: place for place in new}.values()
    return list(found.values())


def _go_back(reading: Reading, main: list[Place], stuck: Sequence[Place]) -> list[Place]:
    """Return the ranks in the earliest call of the series in which most wait: there the ranks part."""
    for _ in range(MOST_BACK):
        call, need = main[0].call, reading.need(main[0])
        if call is None:
            break
        earlier = [
            place
            for place in stuck
            if place.rank in need.ranks
            and place.call is not None
            and place.kind in ("collective", "wrapper")
            and place.call.series == call.series
            and place.call.ordinal < call.ordinal
        ]
        if not earlier:
            break
        first = min(earlier, key=lambda place: place.call.ordinal if place.call is not None else 0)
        main = [place for place in stuck if place.key == first.key]
    return main


def _go_to(place: Place, main: Place) -> Place:
    """Return a rank at the call that it made at the number of another one's."""
    call = call_at(place, main.call.series, main.call.ordinal) if main.call is not None else None
    if call is None or call is place.call:
        return place
    return replace(place, call=call, kind="collective", stand=replace(place.stand, conditions=()))


def _find_joined(main: Sequence[Place], waiting: Sequence[Place], stuck: Sequence[Place]) -> list[Place]:
    """Return the ranks that wait in a call, and those that have made it and wait behind it."""
    call = main[0].call
    apart = {place.rank for place in (*main, *waiting)}
    if main[0].kind != "collective" or call is None:
        return list(main)
    behind = [
        _go_to(place, main[0])
        for place in stuck
        if place.rank not in apart and call_at(place, call.series, call.ordinal) is not None
    ]
    return [*main, *behind]


def to_finding(deadlock: Deadlock, reading: Reading) -> Finding:
    """Return the finding of a deadlock."""
    look = reading.look
    hosts = {place.rank: place.stand.host for place in reading.places if place.stand.host}
    several = len(set(hosts.values())) > 1
    where: list[Where] = []
    if deadlock.skip is not None:
        skip = deadlock.skip
        where.append(Where(deadlock.culprits, "culprit", skip.file, skip.line, None, skip.source))
    for number, side in enumerate(deadlock.sides):
        innocent = not ranks_of(side).minus(deadlock.victims)
        role = "culprit" if number < deadlock.blamed else "victim" if innocent else "noticed"
        where.extend(_places(side, role, hosts if several else {}))
    if deadlock.around is not None:
        around = deadlock.around
        where.append(Where(deadlock.culprits, "condition", around.file, around.line, None, around.source))
    seen = [*what_was_seen(reading), *deadlock.seen]
    return Finding(
        message=deadlock.message,
        ranks=deadlock.culprits,
        victims=deadlock.victims,
        nodes=tuple(dict.fromkeys(hosts[rank] for rank in deadlock.culprits if rank in hosts))
        if several
        else (),
        where=tuple(sorted(where, key=lambda each: _ORDER.index(each.role))),
        evidence=tuple(seen),
        fix=tuple(deadlock.fix),
        details={
            **deadlock.details,
            "proof": deadlock.proof,
            "stage": look.stage,
            "still_s": round(look.still_s, 3),
        },
        confidence=deadlock.confidence,
        role=deadlock.role,
        decisive=deadlock.role == "cause",
    )


_ORDER = ("culprit", "condition", "caller", "victim", "noticed")


def what_was_seen(reading: Reading) -> list[EvidenceItem]:
    """Return what a finding of a look rests on."""
    look = reading.look
    still = format_age(look.still_s) if look.still_s >= 10 else f"{look.still_s:.1f} s"
    seen = [
        EvidenceItem(
            "ring",
            f"collective history of {count_of(len(reading.places), 'rank')} and two stack samples "
            f"{look.interval_s:.1f} s apart; no progress for {still}",
        )
    ]
    seen += list_recorded(reading)
    for place in reading.places:
        for frame in place.stand.others[:1]:
            at = f"{frame.file}:{frame.line}"
            text = f"another thread is at {at} in {frame.function}, and may still issue collectives"
            seen.append(EvidenceItem("thread", text, ranks_of([place])))
    if reading.unseen:
        seen.append(EvidenceItem("ring", f"nothing was seen of {name_set(reading.unseen)}", reading.unseen))
    seen += quote_ras(look)
    return seen


def _places(side: Sequence[Place], role: str, hosts: dict[int, str]) -> Iterable[Where]:
    """Return one place per line on which ranks of a side stand, and for culprits who called and on what condition."""
    by_line: dict[tuple[str, int] | None, list[Place]] = {}
    for place in side:
        line = place.line
        by_line.setdefault((line.file, line.line) if line is not None else None, []).append(place)
    for key, members in by_line.items():
        line = members[0].line
        if key is None or line is None:
            continue
        ranks = ranks_of(members)
        known = {hosts.get(rank) for rank in ranks}
        host = known.pop() if len(known) == 1 else None
        yield in_frame(line, ranks, role, host)
        call = members[0].call
        frames = user_frames(call.frames if call is not None and call.frames else members[0].stand.frames)
        for frame in frames[1 : 1 + MOST_CALLERS] if role == "culprit" else ():
            yield in_frame(frame, ranks, "caller", host)
        guard = guard_of(members[0])
        if guard is not None:
            yield Where(ranks, "condition", guard.file, guard.line, None, guard.source, host)


def _is_missing(main: Sequence[Place], others: Sequence[Place]) -> bool:
    """Whether calls at one number are different calls of the program, one of which some ranks pass by.

    They are where one side's line is in everybody's history and the other's is not, and where one stands under a test
    on the rank and the other does not stand on the other side of that test.
    """
    one, other = main[0], others[0]
    if site_of(one) is None or site_of(other) is None or called_at(one) == called_at(other):
        return False
    if _are_opposite(one, other):
        return False
    guards = [guard_of(one), guard_of(other)]
    if guards[0] is not None and guards[1] is not None:
        return spot_of(guards[0]) != spot_of(guards[1])
    if guards[0] is not None or guards[1] is not None:
        return True
    mine, theirs = called_at(one) in lines_called(other.stand), called_at(other) in lines_called(one.stand)
    return mine != theirs


def _are_opposite(one: Place, other: Place) -> bool:
    """Whether two ranks stand on the two sides of one test: there each makes the call that is the other's."""
    kinds = {spot_of(each): each.function for each in one.stand.conditions}
    return any({kinds.get(spot_of(each)), each.function} == {"if", "else"} for each in other.stand.conditions)
