"""Ranks that do not move while others wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.native import NativeFrame, leave_interpreter
from ddpdoctor.evidence.standstill import ChildStand
from ddpdoctor.judge import EvidenceItem, Finding, Where
from ddpdoctor_checks.common.frames import user_frames, user_line
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import capitalise, choose_form, format_age, join_words, name_set
from ddpdoctor_checks.job.hangs.doing import describe_doing
from ddpdoctor_checks.job.hangs.flight_recorder import name_wait
from ddpdoctor_checks.job.hangs.reading import BACKWARD, STOPPED, Reading, largest, name_line, part, ranks_of
from ddpdoctor_checks.job.hangs.sides import guard_of, spot_of
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.symmetric import find_symmetric
from ddpdoctor_checks.job.hangs.waits import what_was_seen

UNCLEAR = ("native", "compute", "device")
"""What a rank does where its Python lines do not say it: then native frames do."""
MOST_UNCLEAR = 64
MOST_NATIVE = 6
"""Native frames that a line of evidence shows."""
WITH_CHILDREN = ("loader", "process", "subprocess")
"""What a rank does that waits for a child: where the child stands is what counts."""
MOST_SIDES, MOST_CALLERS = 3, 2


def find_stall(reading: Reading, stage: str) -> Finding | None:
    """Return the rank that others wait for and that does not move.

    Args:
        reading: of a look in which nobody is stuck for good.
        stage: of the look.

    Returns:
        None where no rank waits, or where those that are waited for move.
    """
    main, held = _find_held(reading)
    if not main:
        return None
    if not held:
        return find_symmetric(reading, stage) if stage != "look" or reading.look.still_s > 5 else None
    late = reading.look.still_s >= reading.look.hang_timeout_s
    still = [place for place in held if not place.moved or (late and _stays(place))]
    if len(still) < len(held) or not still:
        return None
    sides = _part_by_spot(still)
    doing = describe_doing(sides[0][0])
    ranks = ranks_of(still)
    stand = sides[0][0].stand
    hosts = {each.stand.host for each in reading.places if each.stand.host}
    host = stand.host if len(hosts) > 1 else None
    name = name_set(ranks) + (f" on {host}" if host and len({each.stand.host for each in still}) == 1 else "")
    waiting = name_set(ranks_of(main))
    where = [found for side in sides for found in _list_places(side, len(hosts) > 1)]
    first = main[0].line
    if first is not None:
        where.append(in_frame(first, ranks_of(main), "victim"))
    verb = "waits" if len(main) == 1 else "wait"
    told = join_words((_say_standing(side, only=len(sides) == 1) for side in sides), few=MOST_SIDES)
    begun = all(place.call is not None for place in still)  # stopped inside of it
    how = choose_form(len(ranks), "is not in it", "are not in it")
    if begun:
        how = choose_form(len(ranks), "blocks them", "block them")
    elif main[0].call is not None and main[0].call.op != BACKWARD:
        how = "never issued it"
    where_they_wait = f"{verb} in {name_wait(main)}{name_line(first)}"
    message = f"{capitalise(waiting)} {where_they_wait}; {name} {how}: {told}."
    return Finding(
        message=message,
        code="COL009",
        ranks=ranks,
        victims=ranks_of(main),
        nodes=(host,) if host else (),
        where=tuple(where),
        evidence=(*what_was_seen(reading), *show_native(still), *_children(stand.children)),
        fix=(doing.fix,),
        details={
            "doing": doing.kind,
            "still_s": round(stand.still_s or 0.0, 1),
            "proof": False,
            "stage": stage,
            **list_unclear(still),
        },
        confidence="high" if stage == "confirmed" or doing.kind == "stopped" else "medium",
        decisive=True,
    )


def _find_held(reading: Reading) -> tuple[Sequence[Place], Sequence[Place]]:
    """Return the ranks in the call in which most wait, and those outside of every call that somebody waits for."""
    waiting = [place for place in reading.places if place.waits]
    outside = [place for place in reading.places if place.kind == "outside"]
    needed: set[int] = set()
    classes: dict[tuple[object, ...], list[Place]] = {}
    for place in waiting:
        classes.setdefault(place.key, []).append(place)
    needs = {key: reading.need(members[0]).ranks for key, members in classes.items()}
    needed.update(*needs.values())
    if not outside and reading.look.still_s >= reading.look.hang_timeout_s:
        # A device that was given nothing that is known to be open: what C++ has queued there is not written down.
        unknown = [place for place in waiting if place.kind == "device" and not needs[place.key]]
        outside = [place for place in unknown if place.rank in needed]
        waiting = [place for place in waiting if place not in unknown]
    # Stopped, or in code of its own within a call: it has begun what others wait in, and does not get on with it.
    inside = [place for place in outside if place.stand.state in STOPPED or place.call is not None]
    held = [place for place in outside if place.rank in needed or place in inside]
    ranks = {place.rank for place in held}
    main = [place for place in waiting if needs[place.key] & ranks] or waiting
    return largest(place for place in main if place.kind in ("collective", "wrapper")) or main, held


def _part_by_spot(places: Sequence[Place]) -> list[list[Place]]:
    """Return ranks by the line on which they stand, those of the most ranks first."""
    return part(places, lambda place: spot_of(place.line) if place.line is not None else None)


def _say_standing(side: Sequence[Place], *, only: bool) -> str:
    """Return ``for 43 s it has been in read_shard (data.py:61), where it sleeps``."""
    place = side[0]
    doing, line, stand = describe_doing(place), place.line, place.stand
    one = len(side) == 1
    name = ("it" if one else "they") if only else name_set(ranks_of(side))
    spent = min((each.stand.still_s for each in side if each.stand.still_s is not None), default=None)
    there = "outside of any collective"
    if line is not None:
        at = f"{line.file}:{line.line}"
        there = f"in {line.function} ({at})" if line.function != "<module>" else f"at {at}"
    inside = ""
    worker = _worker_line(stand.children)
    if worker is not None and doing.kind in WITH_CHILDREN:
        child, frame = worker
        inside = (
            f", one of which is in {frame.function} ({frame.file}:{frame.line})"
            if child.role == "loader-worker"
            else f" (pid {child.pid})"
        )
    what = f"{'it' if one else 'each'} {doing.text}{inside}"
    return f"for {format_age(spent or 0.0)} {name} {'has' if one else 'have'} been {there}, where {what}"


def _list_places(side: Sequence[Place], hosts: bool) -> Iterator[Where]:
    """Yield where ranks stand: the line of the child that they wait for, their own, and who called it."""
    place, ranks = side[0], ranks_of(side)
    stand, line = place.stand, place.line
    host = stand.host if hosts else None
    worker = _worker_line(stand.children)
    if worker is not None and describe_doing(place).kind in WITH_CHILDREN:
        frame = worker[1]
        yield in_frame(frame, ranks, "culprit", host)
    if line is None:
        return
    yield in_frame(line, ranks, "culprit", host)
    for frame in user_frames(stand.frames)[1 : 1 + MOST_CALLERS]:
        yield in_frame(frame, ranks, "caller", host)
    guard = guard_of(place) if place.kind == "device" else None
    if guard is not None:
        yield Where(ranks, "condition", guard.file, guard.line, None, guard.source, host)


def _stays(place: Place) -> bool:
    """Whether a rank that computes was on the same line of its own in both samples."""
    now, before = user_line(place.stand.frames), user_line(place.stand.frames_before)
    return now is not None and now == before


def list_unclear(places: Sequence[Place]) -> dict[str, list[int]]:
    """Return the details of a finding on ranks whose Python lines do not say what they do."""
    ranks = [place.rank for place in places if describe_doing(place).kind in UNCLEAR]
    return {"unclear": ranks[:MOST_UNCLEAR]} if ranks else {}


def show_native(places: Sequence[Place]) -> list[EvidenceItem]:
    """Return a line for the native frames of each rank that has some, innermost first; equal ones are one."""
    groups: dict[tuple[NativeFrame, ...], list[int]] = {}
    for place in places:
        if place.stand.native:
            frames = leave_interpreter(place.stand.native)[:MOST_NATIVE]
            groups.setdefault(frames, []).append(place.rank)
    return [
        EvidenceItem(
            "native",
            "native frames, innermost first: "
            + ", ".join(f"{frame.function} ({frame.library})" for frame in frames),
            RankSet(ranks),
        )
        for frames, ranks in list(groups.items())[:MOST_SIDES]
    ]


def _worker_line(children: Sequence[ChildStand]) -> tuple[ChildStand, Frame] | None:
    """Return the child that a rank may wait for, and the user's line on which it stands."""
    for child in children:
        line = user_line(child.frames)
        if line is not None:
            return child, line
    return None


def _children(children: Sequence[ChildStand]) -> list[EvidenceItem]:
    items = []
    for child in children[:4]:
        line = user_line(child.frames)
        at = f" is blocked{name_line(line)}" if line is not None else ""
        what = "DataLoader worker" if child.role == "loader-worker" else "child"
        items.append(EvidenceItem("child", f"{what} {child.pid}{at}, {child.state or 'state unknown'}"))
    return items
