"""Calls matched over ranks: the first difference of each process group, and who of the ranks is the odd one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.collectives import RETIRED, SCHEDULED, STARTED, CallLog
from ddpdoctor_checks.common.wording import name_set
from ddpdoctor_checks.job.calls.chains import ask_others, find_held, narrow, settle_cycle
from ddpdoctor_checks.job.calls.sequences import MEETING, Essences, GroupCalls, Line, read_groups
from ddpdoctor_checks.job.calls.swaps import find_swap_among
from ddpdoctor_checks.job.calls.votes import AHEAD, Difference, Side, minority, place_of, vote

SHIFTS = 8
"""Calls that a rank may have left out or made more in one place."""
LEAST = 2
"""Calls that must fit again behind a shift: one may fit by chance."""


@dataclass(frozen=True, slots=True)
class Matching:
    """All groups of a log matched."""

    log: CallLog
    essences: Essences
    groups: tuple[GroupCalls, ...]
    differences: tuple[Difference, ...]
    """At most one for each group; the one that explains the others first."""
    stale: RankSet = field(default_factory=RankSet)
    """Ranks whose dumps are older than what they did: others have ended a call that these have not even begun."""


def match_calls(log: CallLog) -> Matching:
    """Match the calls of all ranks, group by group."""
    essences = Essences(log)
    groups = read_groups(log)
    found: list[Difference] = []
    stale: set[int] = set()
    for group in groups:
        difference = find_difference(group, essences, stale)
        if difference is not None:
            found.append(difference)
    return Matching(log, essences, tuple(groups), tuple(_order(found, groups, essences)), RankSet(stale))


def find_difference(group: GroupCalls, essences: Essences, stale: set[int]) -> Difference | None:
    """Return where the ranks of a group first differ; None where they do not, or nobody waits.

    Args:
        group: with the calls of each rank.
        essences: of its log.
        stale: gets the ranks whose dumps are too old to say anything of the end.
    """
    lines = [line for _, line in sorted(group.lines.items())]
    called = [line for line in lines if line.numbers]
    if len(group.members) < 2 or not called:
        return None
    if len(called) > 1:
        start = max(line.first for line in called)
        stop = min(line.last for line in called) + 1
        difference = _compare(group, called, start, stop, essences)
        if difference is not None:
            return difference
    return _find_missing(group, lines, essences, stale)


def _compare(
    group: GroupCalls, lines: Sequence[Line], start: int, stop: int, essences: Essences
) -> Difference | None:
    """Compare what all ranks have in common; ranks that made equal calls are compared once."""
    classes: dict[bytes, list[Line]] = {}
    for line in lines:
        classes.setdefault(line.part(start, stop), []).append(line)
    if len(classes) < 2:
        return None
    samples = [members[0] for members in classes.values()]
    for number in range(start, stop):
        seen = {essences.of(calls) for sample in samples if (calls := sample.at(number))}
        if len(seen) > 1:
            return _tell_mismatch(group, lines, number, essences)
    return find_swap_among(group, list(classes.values()), start, stop, essences)


def _tell_mismatch(group: GroupCalls, lines: Sequence[Line], number: int, essences: Essences) -> Difference:
    voted = vote(lines, number, essences.of, essences)
    sides = tuple(side for side, _ in voted)
    culprits = minority(sides, group)
    kind = "mismatch"
    if len(voted) == 2:
        one, other = voted[0][1][0], voted[1][1][0]
        kind = (culprits and _find_shift(one, other, number, essences)) or (
            "apart" if _are_apart(one, other, number, essences) else kind
        )
    return Difference(kind, group, number, sides, culprits, "high" if culprits else "medium")


def _find_shift(usual: Line, odd: Line, number: int, essences: Essences) -> str | None:
    """Say whether the odd rank skipped calls or issued more of them: behind that its calls fit again, shifted.

    Where they fit again without a shift, one call took the place of another: that is a mismatch. Where all calls are
    alike, one skipped or one more explains as much, and is more common.
    """

    def fits(one: Line, first: int, other: Line, second: int) -> bool:
        count = min(one.last - first, other.last - second, AHEAD) + 1
        return count >= LEAST and all(
            essences.of(one.at(first + n)) == essences.of(other.at(second + n)) for n in range(count)
        )

    for shift in range(1, SHIFTS + 1):
        if fits(odd, number, usual, number + shift):
            return "skipped"
        if fits(odd, number + shift, usual, number):
            return "extra"
        if fits(usual, number + 1, odd, number + 1):
            return None
    return None


def _are_apart(one: Line, other: Line, number: int, essences: Essences) -> bool:
    """Whether two ranks are at different places of the program, rather than in one call with other arguments.

    They are where one call is the wrapper's own and the other is not, and where a line in which one side stands was
    called by the other side before: it belongs to both, and the ways through the program part here.
    """
    first, second = one.at(number), other.at(number)
    if bool(essences.origin(first)) != bool(essences.origin(second)):
        return True
    here, there = place_of(essences.site(first)), place_of(essences.site(second))
    if here is None or there is None or here == there:
        return False
    return here in _places_before(other, number, essences) or there in _places_before(one, number, essences)


def _places_before(line: Line, number: int, essences: Essences) -> set[tuple[str, int] | None]:
    calls = {call for n, call in zip(line.numbers, line.calls, strict=True) if n < number}
    return {place_of(essences.site((call,))) for call in calls}


def _find_missing(
    group: GroupCalls, lines: Sequence[Line], essences: Essences, stale: set[int]
) -> Difference | None:
    """Find ranks that never came to a call in which others wait."""
    rest = [line for line in lines if line.whole or line.numbers]
    while len(rest) > 1:
        least = min(line.last for line in rest)
        behind = [line for line in rest if line.last == least]
        ahead = [line for line in rest if line.last > least and line.at(least + 1)]
        if not ahead or len(behind) == len(rest):
            break
        number = least + 1
        open_, doubtful = _who_waits(ahead, number, essences)
        if open_ or (doubtful and group.certain):
            return _tell_missing(group, number, behind, ahead, bool(open_), essences)
        stale.update(line.rank for line in behind)
        rest = [line for line in rest if line.last > least]
    return _find_together(group, rest, essences)


def _who_waits(ahead: Sequence[Line], number: int, essences: Essences) -> tuple[list[Line], list[Line]]:
    """Return who is in a call for sure, and who may be: gloo forgets a call also where it failed."""
    open_, doubtful = [], []
    for line in ahead:
        over = line.is_over(number)
        if over is False:
            open_.append(line)
        elif over is None and essences.log.calls[line.at(number)[0]].op in MEETING:
            doubtful.append(line)
    if len(open_) + len(doubtful) < len(ahead) and any(
        line.is_over(number) and essences.log.calls[line.at(number)[0]].op in MEETING for line in ahead
    ):
        return [], []  # it ended on a rank, so all have made it
    return open_, doubtful


def _tell_missing(
    group: GroupCalls, number: int, behind: Sequence[Line], ahead: Sequence[Line], sure: bool, essences: Essences
) -> Difference:  # fmt: skip
    sides = [side for side, _ in vote(ahead, number, essences.of, essences)]
    parts: dict[tuple[int, ...], list[int]] = {}
    for line in behind:
        parts.setdefault(line.at(line.last) if line.numbers else (), []).append(line.rank)
    for calls, ranks in parts.items():
        last = calls[0] if calls else None
        sides.append(Side(RankSet(ranks), None, essences.site(calls), last, number - 1))
    late, here = RankSet(line.rank for line in behind), RankSet(line.rank for line in ahead)
    culprits = RankSet()
    if len(late) != len(here):
        culprits = late if len(late) < len(here) else here
    confidence = "high" if sure and culprits else "medium"
    return Difference("missing", group, number, tuple(sides), culprits, confidence, late, here)


def _find_together(group: GroupCalls, lines: Sequence[Line], essences: Essences) -> Difference | None:
    """All of whom there is a dump are in one call: is somebody else missing, or is it the network?"""
    called = [line for line in lines if line.numbers]
    if not called or len({line.last for line in called}) > 1:
        return None
    number = called[0].last
    if not all(line.is_over(number) is False for line in called):
        return None
    sides = tuple(side for side, _ in vote(called, number, essences.of, essences))
    here = RankSet(line.rank for line in called)
    absent = group.absent
    if absent:
        return Difference("absent", group, number, sides, absent, "medium", absent, here)
    # On a device a call is started once the work before it is done; gloo never says so.
    states = {line.rank: (line.state(number) or 0) & ~RETIRED for line in called}
    idle = RankSet(rank for rank, state in states.items() if state == SCHEDULED)
    if idle and STARTED in states.values() and 2 * len(idle) < len(called):
        return Difference("unstarted", group, number, sides, idle, "medium", idle, here.minus(idle))
    return Difference("together", group, number, sides, RankSet(), "low", RankSet(), here)


_WEIGHT = {
    "mismatch": 0, "apart": 0, "skipped": 0, "extra": 0, "missing": 1, "swapped": 2, "absent": 3, "unstarted": 4,
    "together": 5,
}  # fmt: skip


def _order(found: Sequence[Difference], groups: Sequence[GroupCalls], essences: Essences) -> list[Difference]:
    """Put first what explains the others: a rank that is late in one group waits in another one, or it does not."""
    held = find_held(groups)
    for_absent = RankSet().union(*(each.waiting for each in found if each.kind == "absent"))

    def weigh(each: Difference) -> tuple[int, int, int, str]:
        waits = sum(rank in held for rank in each.behind) if each.kind == "missing" else 0
        free = 0 if not waits else 1 if waits < len(each.behind) else 2
        follows = free == 2 and not each.behind.minus(for_absent)
        return (_WEIGHT["absent" if follows else each.kind], free, -len(each.waiting), each.group.name)

    ordered = [ask_others(narrow(each, held, found), essences) for each in sorted(found, key=weigh)]
    return settle_cycle(ordered, groups, essences)


def find_unexplained(matching: Matching) -> str | None:
    """Return words on what recorded calls leave open although none of them differ; None where nothing is open.

    A rank may wait in a call while nothing tells for whom, or a rank left no dump, so that its calls are not known.
    """
    for group in matching.groups:
        if group.certain or len(group.members) > 1:
            continue
        for rank, line in group.lines.items():
            if line.numbers and line.is_over(line.last) is False:
                call = matching.log.calls[line.at(line.last)[0]]
                where = f"{call.op} #{line.last}{group.title}"
                return f"rank {rank} is blocked in {where}, and its members are not known"
    absent = RankSet().union(*(group.absent for group in matching.groups if group.certain))
    # Where most are absent, these are the dumps of one host, say.
    if absent and len(absent) < len(matching.log.ranks):
        return f"{name_set(absent)} left no dump: look there first; the collectives of the other ranks match"
    return None


def waiting_elsewhere(matching: Matching, difference: Difference) -> Mapping[str, RankSet]:
    """Return group -> ranks that are late in one group because they wait in that other one."""
    found: dict[str, list[int]] = {}
    for rank in difference.behind:
        for group in matching.groups:
            line = group.lines.get(rank)
            if (
                group is not difference.group
                and line is not None
                and line.numbers
                and line.is_over(line.last) is False
            ):
                found.setdefault(group.name, []).append(rank)
    return {name: RankSet(ranks) for name, ranks in found.items()}
