"""Ranks that stand, in words: by the line on which they are, and under which test of the rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import Call
from ddpdoctor.judge import EvidenceItem
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words, name_set
from ddpdoctor_checks.job.hangs.flight_recorder import name_wait
from ddpdoctor_checks.job.hangs.reading import FORWARD, INIT, WRAP, name_call, name_line, part, ranks_of
from ddpdoctor_checks.job.hangs.standing import Place

_RANK_WORDS = re.compile(
    r"rank|main_process|is_master|is_main|is_chief|\bmaster\b|local_process|process_index", re.I
)
"""How scripts call what tells ranks apart."""
MOST_SIDES = 4
"""Sides of a disagreement that a sentence names."""
ASKED = ("work", "device")
"""Kinds of places at which a rank waits for what it asked for on another line."""


def guard_of(place: Place) -> Frame | None:
    """Return the test on the rank that decides whether a rank comes to the line on which it stands."""
    return next((each for each in place.stand.conditions if _is_test(each)), None)


def _is_test(condition: Frame) -> bool:
    return condition.function in ("if", "else", "unless", "while") and bool(
        _RANK_WORDS.search(condition.source or "")
    )


def op_of(place: Place) -> str:
    """Return the op of the call in which a rank stands; empty where it is in none."""
    return place.call.op if place.call is not None else ""


def site_of(place: Place) -> Frame | None:
    """Return the line from which a rank made its call; that of a wait for it may be another."""
    return (user_line(place.call.frames) if place.call is not None else None) or place.line


def called_at(place: Place) -> tuple[str, int] | None:
    """Return the line of a rank's call as `spot_of` gives it."""
    site = site_of(place)
    return spot_of(site) if site is not None else None


def spot_of(frame: Frame) -> tuple[str, int]:
    """Return what tells one line from another."""
    return frame.file, frame.line


def part_by_line(places: Iterable[Place]) -> list[list[Place]]:
    """Return ranks by where they stand, those of the most ranks first."""
    return part(
        places,
        lambda place: (
            place.key if place.kind not in ASKED else (place.kind, op_of(place)),
            spot_of(place.line) if place.line is not None else None,
        ),
    )


def forwards(place: Place) -> int | None:
    """Return how many forwards of a wrapped model a rank has begun; None where it has none."""
    return max((call.ordinal for call in place.stand.recent if call.op == FORWARD), default=None)


def count_forwards(places: Sequence[Place]) -> list[EvidenceItem]:
    """Return how many forwards of the wrapped model each rank ran, where they differ."""
    counts: dict[int, list[int]] = {}
    for place in places:
        count = forwards(place)
        if count is not None:
            counts.setdefault(count, []).append(place.rank)
    if len(counts) < 2:
        return []
    told = join_words(
        (
            f"{name_set(RankSet(ranks))} ran {count_of(count, 'forward pass', 'forward passes')} of the "
            "wrapped model"
        )
        for count, ranks in sorted(counts.items())
    )
    return [EvidenceItem("count", told)]


def name_ranks(places: Sequence[Place]) -> str:
    """Return ``Ranks 0, 2``, for the beginning of a sentence."""
    return capitalise(name_set(ranks_of(places)))


def say_wait(places: Sequence[Place]) -> str:
    """Return ``wait in all_reduce #8 (train.py:88)``."""
    verb = "waits" if len(places) == 1 else "wait"
    return f"{verb} in {name_wait(places)}{name_line(places[0].line)}"


def say_place(place: Place, *, bare: bool = False) -> str:
    """Return where one rank stands and what it waits for, for a sentence."""
    name = "" if bare else f"rank {place.rank} "
    if place.kind == "gone":
        return say_gone([place])
    if place.kind == "work":
        return f"{name}waits for {_say_asked(place)}{name_line(place.line)}"
    if place.kind == "device":
        return (
            f"{name}waits for its device, which has {_say_asked(place)} in its queue{name_line(place.line)}"
        )
    if place.kind == "outside":
        return f"{name}is elsewhere{name_line(place.line)}"
    return f"{name}is blocked in {name_call(place.call)}{name_line(place.line)}"


def _say_asked(place: Place) -> str:
    """Return what a rank waits for that it asked for on another line."""
    asked = user_line(place.call.frames) if place.call is not None else None
    same = asked is None or (place.line is not None and spot_of(asked) == spot_of(place.line))
    return f"{name_call(place.call)}" if same else f"{name_call(place.call)}, issued{name_line(asked)},"


def say_gone(gone: Sequence[Place]) -> str:
    """Return how ranks that are gone have ended."""
    stand = gone[0].stand
    line = name_line(gone[0].line)
    name = name_set(ranks_of(gone))
    if stand.signal is not None:
        return f"{name} was killed by signal {stand.signal}"
    if stand.exit_frames:
        code = f" with status {stand.exit_code}" if stand.exit_code else ""
        return f"{name} has exited{code}{line}"
    if stand.exit_code:
        return f"{name} has ended with exit code {stand.exit_code}"
    last = stand.recent[-1] if stand.recent else None
    after = f" after {name_call(last)}{name_line(user_line(last.frames))}" if last is not None else ""
    if not stand.ended and stand.exit_code is None:
        return f"{name} is gone{after}"
    return f"{name} has reached the end of the script{after}"


def say_sides(places: Sequence[Place], *, bare: bool = False, first: bool = False) -> str:
    """Return ``ranks 0, 2 wait in all_reduce #8 (train.py:88) and rank 3 waits in barrier #9 (train.py:97)``."""
    parts = []
    for side in part_by_line(places)[:MOST_SIDES]:
        if bare and len(side) == len(places):
            it = "it" if len(side) == 1 else "they"
            parts.append(
                f"{it} {say_wait(side)}"
                if side[0].kind not in ASKED
                else f"{it} {say_place(side[0], bare=True)}"
            )
        elif side[0].kind in ASKED:
            parts += [say_place(place) for place in side[:MOST_SIDES]]
        else:
            parts.append(f"{name_set(ranks_of(side))} {say_wait(side)}")
    text = join_words(parts)
    return capitalise(text) if first else text


def say_call(side: Sequence[Place]) -> str:
    """Return ``rank 3 calls broadcast(root 0) of [4] float32 (train.py:97)``."""
    call = side[0].call
    assert call is not None
    verb = "calls" if len(side) == 1 else "call"
    return f"{name_set(ranks_of(side))} {verb} {describe_arguments(call)}{name_line(side[0].line)}"


def say_members(call: Call) -> str:
    """Return of whom a group is made."""
    return name_set(call.members) if call.members else "all ranks"


def describe_arguments(call: Call) -> str:
    """Return a call with what must agree: ``all_reduce(sum) of [3] float32``."""
    inside = [call.reduction] if call.reduction else []
    if call.peer is not None and not call.point_to_point:
        inside.append(f"root {call.peer}")
    what = f"{call.op}({', '.join(inside)})" if inside else call.op
    if call.op in (WRAP, INIT):
        what = name_call(call)
    if call.shape is None:
        return what
    return f"{what} of {list(call.shape)} {call.dtype or ''}".rstrip()
