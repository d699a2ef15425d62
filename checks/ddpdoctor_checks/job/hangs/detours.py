"""Where ranks first issued their collectives from different lines, some time before the one in which they are blocked.

A collective that one rank issues in addition can be paired with the next one of the others: same operation, same size.
All that follow are off by one, and ranks are blocked only where the first two do not match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import Call
from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.frames import user_frames
from ddpdoctor_checks.common.wording import capitalise, join_words, name_set
from ddpdoctor_checks.job.hangs.reading import name_group, name_line, part, ranks_of
from ddpdoctor_checks.job.hangs.sides import MOST_SIDES, say_call
from ddpdoctor_checks.job.hangs.skips import TESTS, is_alike
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.verdicts import Deadlock

LEAST = 3
"""Collectives in a row that all ranks must have issued from the same lines before."""

_Site = tuple[tuple[str, int], ...]


def find_detour(places: Sequence[Place]) -> Deadlock | None:
    """Return what is wrong with ranks blocked in a mismatch, by the first collective whose lines differ.

    None where that is the one in which they are blocked, where the lines before are not known or differ as well, and
    where ranks came together again after it: branches may well issue one collective from different lines.
    """
    last = places[0].call
    if last is None or len(places) < 2:
        return None
    made = {place.rank: _list_made(place, last.series) for place in places}
    common = sorted(set.intersection(*(set(calls) for calls in made.values())))
    first = next((number for number in common if len({_find_site(made[r][number]) for r in made}) > 1), None)
    if first is None or first >= last.ordinal or common.index(first) < LEAST:
        return None
    sides = part(places, lambda place: _find_site(made[place.rank][first]))
    if len(sides) != 2 or not _goes_its_way([made[side[0].rank] for side in sides], first):
        return None
    fresh = [side for side in sides if not _count_before(made[side[0].rank], first)]
    odd = fresh if len(fresh) == 1 else []
    sides = sorted(
        sides, key=lambda side: (side not in odd, _count_before(made[side[0].rank], first, after=1))
    )
    return _tell(sides, odd, made, first, last)


def _list_made(place: Place, series: str) -> dict[int, Call]:
    calls = [*place.stand.recent, *([place.call] if place.call is not None else [])]
    return {call.ordinal: call for call in calls if call.series == series and call.collective}


def _find_site(call: Call) -> _Site:
    return tuple((frame.file, frame.line) for frame in user_frames(call.frames))


def _count_before(made: Mapping[int, Call], number: int, *, after: int = 0) -> int:
    """Return how often a rank has issued a collective from those lines before, and so many others from theirs."""
    sites = {each: _find_site(call) for each, call in made.items()}
    return sum(
        all(sites.get(each - back) == sites.get(number - back) for back in range(after + 1))
        for each in made
        if each < number
    )


def _goes_its_way(made: Sequence[Mapping[int, Call]], first: int) -> bool:
    """Whether one of two ranks does later what the other did at once, or never comes to the same lines again.

    More of their lines have to be the same so than number by number.
    """
    rows = [[_find_site(calls[number]) for number in sorted(calls) if number >= first] for calls in made]
    if any(not all(row) for row in rows):
        return False
    if not set(rows[0]) & set(rows[1]):
        return True
    together = sum(one == other for one, other in zip(*rows, strict=False))
    for longer, other in (rows, rows[::-1]):
        for extra in range(1, len(longer) - together):
            if all(one == two for one, two in zip(longer[extra:], other, strict=False)):
                return True
    return False


def _tell(
    sides: Sequence[Sequence[Place]],
    odd: Sequence[Sequence[Place]],
    made: Mapping[int, Mapping[int, Call]],
    first: int,
    last: Call,
) -> Deadlock:
    stacks = [user_frames(made[side[0].rank][first].frames) for side in sides]
    shared = _count_shared(*stacks)
    there = [[_put(place, made[place.rank][first], shared) for place in side] for side in sides]
    apart = join_words(f"{name_set(ranks_of(side))} issued it{name_line(side[0].line)}" for side in there)
    told = join_words(say_call(side) for side in sides[:MOST_SIDES])
    culprits = ranks_of(place for side in odd for place in side)
    test = _find_test(sides, made, first)
    group = name_group(last)
    which = f"; {name_set(culprits)} had not been there before" if culprits else ""
    doubt = "" if culprits else "; the evidence does not show which side is wrong"
    if test is not None:
        doubt += f". The `if` in {test.file}:{test.line} decides which way a rank goes"
    return Deadlock(
        "COL002" if culprits else "COL003",
        f"{capitalise(f'up to collective #{first - 1}{group}')} all came from the same lines, and #{first} did not: "
        f"{apart}{which}. Since then torch pairs collectives of different lines, until #{last.ordinal}, where "
        f"{told}{doubt}.",
        culprits or RankSet(made),
        RankSet(made).minus(culprits) if culprits else RankSet(),
        there,
        blamed=len(odd) or len(sides),
        fix=[
            Fix(
                "issue the same collectives on every rank: check what decides that only some ranks reach the first "
                "line above"
                if test is None
                else f"decide {test.file}:{test.line} by a value that all ranks share, so that all take the same side",
                code=test.source if test is not None else None,
            )
        ],
        details={"group": last.group, "ordinal": first, "blocked_at": last.ordinal},
        skip=test,
    )


def _find_test(
    sides: Sequence[Sequence[Place]], made: Mapping[int, Mapping[int, Call]], first: int
) -> Frame | None:
    """Return the `if` below which one side issued the first call whose lines differ; None where none alone decides.

    It has to stand between the lines of the two sides in one function: what is further up is not below it. It is known
    where the rank is still below it: the callers of a call that is over are not all kept.
    """
    for above, below in (sides, sides[::-1]):
        stand, calls = below[0].stand, made[below[0].rank]
        now = _list_now(below[0])
        other = _list_callers(above[0], made[above[0].rank], first)
        since = [user_frames(call.frames) for number, call in calls.items() if number >= first]
        own = (
            at for at, each in enumerate(now) if each not in other and all(each in frames for frames in since)
        )
        stays = next(own, None)
        early, late = _find_shared(other, now[stays:]) if stays is not None else (None, None)
        if early is None or late is None:
            continue
        between = [
            each for each in stand.conditions if each.file == late.file and early.line < each.line < late.line
        ]
        if len(between) == 1 and between[0].function in TESTS and not is_alike(between[0]):
            return between[0]
    return None


def _list_now(place: Place) -> list[Frame]:
    call = place.stand.call
    return list(user_frames(call.frames if call is not None else place.stand.frames))


def _list_callers(place: Place, made: Mapping[int, Call], first: int) -> list[Frame]:
    """Return the lines of a rank at a call, with the callers that it has now if it has been there ever since."""
    own, now = list(user_frames(made[first].frames)), _list_now(place)
    stays = all(
        list(user_frames(call.frames))[: len(own)] == own for number, call in made.items() if number >= first
    )
    return now if stays and now[: len(own)] == own else own


def _find_shared(one: Sequence[Frame], other: Sequence[Frame]) -> tuple[Frame | None, Frame | None]:
    """Return the lines of the innermost function in which two stacks are at different ones."""
    for mine in one:
        for theirs in other:
            if (mine.file, mine.function) == (theirs.file, theirs.function) and mine.line != theirs.line:
                return mine, theirs
    return None, None


def _count_shared(one: Sequence[Frame], other: Sequence[Frame]) -> int:
    """Return in how many of their innermost frames two stacks are the same."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (mine, theirs) in enumerate(pairs) if mine != theirs), 0)


def _put(place: Place, call: Call, skipped: int) -> Place:
    """Return a rank at an earlier call, without the innermost lines that another rank's call has as well."""
    frames = user_frames(call.frames)[skipped:]
    return replace(
        place,
        call=replace(call, frames=tuple(frames)),
        kind="collective",
        stand=replace(place.stand, conditions=()),
    )
