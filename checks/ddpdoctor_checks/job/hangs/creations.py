"""Groups that ranks created in different order, so that one name means other members on other ranks.

torch names a group by the number of groups that its rank created before (``_process_group_name``). A rank that skips a
`new_group` gives all later groups names that mean others elsewhere: their members meet the wrong partners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Call
from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, join_words, name_set
from ddpdoctor_checks.job.hangs.reading import INIT, Reading, name_line, part, ranks_of
from ddpdoctor_checks.job.hangs.sides import MOST_SIDES, guard_of, say_members, spot_of
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.verdicts import Deadlock

FIXES = (
    Fix(
        "create every group on all ranks of the job, in the same order, also on ranks that are not in it",
        code="for ranks in all_groups:          # the same list on every rank\n"
        "    group = dist.new_group(ranks)\n    if rank in ranks:\n        mine = group",
    ),
    Fix(
        "or let only its members create it, under a name made of its ranks",
        code="dist.new_group(ranks, use_local_synchronization=True)",
    ),
)
Created = dict[int, Call]
"""Number of a group -> the call that created it."""


def find_crossed(reading: Reading) -> Deadlock | None:
    """Return the first group that ranks created with other members, where ranks wait in that one or a later one.

    None where all ranks created the same groups, or where what they wait in does not follow from it.
    """
    living = [place for place in reading.places if place.kind != "gone"]
    if any(place.moved for place in living) or len({_count_worlds(place) for place in living}) > 1:
        return None
    created = {place.rank: list_created(place) for place in living}
    first = _find_first(created)
    if first is None or not any(_waits_in(place, first) for place in living if place.waits):
        return None
    places = [_go_to(place, created[place.rank][first]) for place in living if first in created[place.rank]]
    sides = part(places, lambda place: (place.call.members if place.call is not None else None, _spot(place)))
    guarded = [side for side in sides if guard_of(side[0]) is not None]
    odd = guarded if len(guarded) == 1 else _find_conditional(sides) or _find_minority(sides)
    rest = [side for side in sides if side not in odd]
    told = join_words((_say(side) for side in (*odd, *rest)), few=MOST_SIDES)
    stuck = all(place.rank in reading.stuck for place in living)
    blamed = ranks_of(place for side in odd for place in side)
    return Deadlock(
        "COL006",
        f"{capitalise(told)} as group {first}: the ranks create their groups in a different order, so "
        f"members of a group are connected to the wrong ranks. {_say_blocked(living, first)}.",
        blamed,
        ranks_of(place for side in rest for place in side),
        [*odd, *rest],
        blamed=len(odd),
        fix=list(FIXES),
        details={"group": str(first), "members": [str(_members(side[0])) for side in (*odd, *rest)][:16]},
        proof=stuck,
    )


def _find_conditional(sides: Sequence[Sequence[Place]]) -> list[Sequence[Place]]:
    """Return the one side that creates its group under a condition, where all others do so under none of their own."""
    conditions = [
        {spot_of(each) for each in side[0].stand.conditions if each.function in ("if", "else", "unless")}
        for side in sides
    ]
    own = [
        side
        for place, side in enumerate(sides)
        if conditions[place] - set().union(*(each for other, each in enumerate(conditions) if other != place))
    ]
    return own if len(own) == 1 else []


def _find_minority(sides: Sequence[Sequence[Place]]) -> list[Sequence[Place]]:
    """Return the sides that differ from most ranks, where all are at one line; all sides where no line is common.

    Ranks of different lines may each create groups of their own, of which none need be right for having more ranks.
    """
    if len({_spot(side[0]) for side in sides}) != 1 or _spot(sides[0][0]) is None:
        return list(sides)
    most = max(sides, key=len)
    return (
        [side for side in sides if side is not most] if 2 * len(most) > sum(map(len, sides)) else list(sides)
    )


def list_created(place: Place) -> Created:
    """Return the groups of the present world that a rank is known to have created."""
    created: Created = {}
    for call in place.stand.recent:
        if call.op == INIT:
            created.clear()
        elif call.made is not None and call.made.isdecimal():
            created[int(call.made)] = call
    return created


def _count_worlds(place: Place) -> int:
    """Return how often a rank has called init_process_group: names of groups begin anew with it."""
    return sum(count for series, count in place.stand.counts.items() if series.startswith(f"{INIT} "))


def _find_first(created: dict[int, Created]) -> int | None:
    """Return the lowest number that ranks gave to groups of other members."""
    members: dict[int, set[RankSet]] = {}
    for calls in created.values():
        for number, call in calls.items():
            members.setdefault(number, set()).add(call.members)
    return min((number for number, found in members.items() if len(found) > 1), default=None)


def _waits_in(place: Place, first: int) -> bool:
    """Whether a rank waits in the creation of a group from a number on, or in a call on it."""
    call = place.call
    if call is None or call.default_group:
        return False
    name = call.made or call.group
    return name.isdecimal() and int(name) >= first


def _go_to(place: Place, call: Call) -> Place:
    """Return a rank at the call by which it created a group."""
    return replace(place, call=call, kind="wrapper", stand=replace(place.stand, conditions=call.conditions))


def _spot(place: Place) -> tuple[str, int] | None:
    line = user_line(place.call.frames) if place.call is not None else None
    return spot_of(line) if line is not None else None


def _members(place: Place) -> RankSet:
    return place.call.members if place.call is not None else RankSet()


def _say(side: Sequence[Place]) -> str:
    call = side[0].call
    assert call is not None
    verb = choose_form(len(side), "creates", "create")
    return f"{name_set(ranks_of(side))} {verb} the group of {say_members(call)}{name_line(side[0].line)}"


def _say_blocked(living: Sequence[Place], first: int) -> str:
    """Return where one of the ranks waits because of it."""
    place = next(place for place in living if place.waits and _waits_in(place, first))
    side = [each for each in living if each.key == place.key]
    where = name_line(place.line)
    verb = choose_form(len(side), "is", "are")
    assert place.call is not None
    what = place.call.op if place.call.made is None else "new_group"
    return f"{capitalise(name_set(ranks_of(side)))} {verb} blocked in {what}{where}"
