"""Functional collectives, which go to C++ without being written down: torch's own recorder numbers them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Recorded
from ddpdoctor.judge import Finding, Fix, Where
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, join_words, name_set
from ddpdoctor_checks.job.hangs.needs import tells_all, uses_device
from ddpdoctor_checks.job.hangs.reading import Reading, name_line, ranks_of
from ddpdoctor_checks.job.hangs.sides import guard_of
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.waits import what_was_seen

MOST_SIDES = 3


def find_apart(reading: Reading, stage: str) -> Finding | None:
    """Return that ranks stand in different calls at one number of their group; None where nothing tells it.

    Args:
        reading: of a look at which all ranks wait, some of them in a functional collective.
        stage: of the look.
    """
    living = [place for place in reading.places if place.kind != "gone"]
    open_ = [_first_open(place) for place in living]
    first = open_[0]
    if first is None or not all(each is not None and _may_be_one(each, first) for each in open_):
        return None
    sides: dict[str, list[Place]] = {}
    for place, each in zip(living, open_, strict=True):
        sides.setdefault(each.op if each is not None else "", []).append(place)
    if len(sides) < 2:
        return None
    proven = _is_proven(living, sides.values())
    ordered = sorted(sides.items(), key=lambda side: (-len(side[1]), side[1][0].rank))
    usual = ordered[0][1]
    odd = [place for _, side in ordered[1:] for place in side] if 2 * len(usual) > len(living) else []
    tested = [side for _, side in ordered if guard_of(side[0]) is not None]
    guard = None
    if not odd and len(tested) == 1:  # a test of the rank lets these alone come to their call
        odd, guard = tested[0], guard_of(tested[0][0])
        usual = [place for place in living if place not in odd]
    told = join_words((_say(op, first, side) for op, side in ordered), few=MOST_SIDES)
    doubt = "" if odd else "; the evidence does not show which side is wrong"
    if guard is not None:
        verb = choose_form(len(odd), "is", "are")
        doubt = f"; because of the `if`{name_line(guard)} only {name_set(ranks_of(odd))} {verb} there"
    shown = sorted((side for _, side in reversed(ordered)), key=lambda side: side[0] not in odd)
    return Finding(
        message=f"{capitalise(told)}: torch pairs these as one collective{doubt}.",
        code="COL002",
        ranks=ranks_of(odd),
        victims=ranks_of(usual) if odd else RankSet(),
        where=(
            *(place for side in shown for place in _place(side, odd)),
            *(
                (Where(ranks_of(odd), "condition", guard.file, guard.line, None, guard.source),)
                if guard is not None
                else ()
            ),
        ),
        evidence=tuple(what_was_seen(reading)),
        fix=(Fix("issue the same collectives in the same order on every rank: both lines are above"),),
        details={"proof": proven, "stage": stage, "still_s": round(reading.look.still_s, 3)},
        confidence="high" if proven else "medium",
        decisive=True,
    )


def _is_proven(living: Sequence[Place], sides: Iterable[Sequence[Place]]) -> bool:
    """Whether no rank can make progress: a side waits for nothing but its operation at this number.

    The numbers of gloo's collectives are those of its messages, and no other rank will issue that operation at it: each
    has issued another one there, on its only thread that issues any. A device's collectives are paired by their order.
    """
    alone = any(all(len(_list_open(place)) == 1 for place in side) for side in sides)
    return alone and all(tells_all(place) and not uses_device(place) for place in living)


def _list_open(place: Place) -> tuple[Recorded, ...]:
    recorder = place.stand.recorder
    return recorder.open if recorder is not None else ()


def _first_open(place: Place) -> Recorded | None:
    return next(iter(_list_open(place)), None)


def _may_be_one(one: Recorded, other: Recorded) -> bool:
    """Whether two ranks' calls have one number in one group; gloo does not always tell who is a member."""
    members = one.members == other.members or not one.members or not other.members
    return members and (one.group, one.sequence) == (other.group, other.sequence)


def _say(op: str, first: Recorded, side: Sequence[Place]) -> str:
    verb = choose_form(len(side), "waits", "wait")
    return f"{name_set(ranks_of(side))} {verb} in {op} #{first.sequence}{name_line(side[0].line)}"


def _place(side: Sequence[Place], odd: Sequence[Place]) -> tuple[Where, ...]:
    role = "culprit" if not odd or side[0] in odd else "victim"
    return in_line(side[0].line, ranks_of(side), role)
