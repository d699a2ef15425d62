"""Ranks that issue the same two collectives in another order: equal calls whose lines have changed places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.collectives import RecordedCall
from ddpdoctor_checks.job.calls.sequences import MEETING, Essences, GroupCalls, Line
from ddpdoctor_checks.job.calls.votes import AHEAD, Difference, Side, minority, place_of, vote


def find_swap(group: GroupCalls, essences: Essences) -> Difference | None:
    """Return the first place at which two calls of a group have changed places on some ranks; None where none have.

    Args:
        group: with the calls of each rank.
        essences: of its log.
    """
    lines = [line for _, line in sorted(group.lines.items()) if line.numbers]
    if len(lines) < 2:
        return None
    start, stop = max(line.first for line in lines), min(line.last for line in lines) + 1
    classes: dict[bytes, list[Line]] = {}
    for line in lines:
        classes.setdefault(line.part(start, stop), []).append(line)
    return find_swap_among(group, list(classes.values()), start, stop, essences) if len(classes) > 1 else None


def find_swap_among(
    group: GroupCalls, classes: Sequence[Sequence[Line]], start: int, stop: int, essences: Essences
) -> Difference | None:
    """Find ranks that made equal calls from other lines in another order.

    Other lines alone are no fault: branches on the rank make the same call from two lines. It is one where two lines
    have changed places, one soon after the other. Where the root of a call is not known, such branches may change
    places themselves (each rank broadcasts in turn), so only calls without a root count.
    """
    usual = max(classes, key=len)
    lines = [line for each in classes for line in each]

    def vote_on_ways(number: int) -> tuple[Side, ...]:
        voted = vote(lines, number, lambda calls: _way(essences.path(calls)), essences)
        paths = [essences.path(members[0].at(number)) for _, members in voted]
        depth = next(
            (n for n, frames in enumerate(zip(*paths, strict=False)) if len(set(map(place_of, frames))) > 1),
            0,
        )
        return tuple(
            replace(side, site=path[depth] if path else side.site)
            for (side, _), path in zip(voted, paths, strict=True)
        )

    for members in classes:
        places = _swapped_at(usual[0], members[0], start, stop, essences) if members is not usual else None
        if places is None:
            continue
        sides = vote_on_ways(places[0])
        culprits = minority(sides, group)
        # Ranks that take turns (one gives a value, the others zeros) are another one's minority at each call.
        if len(group.members) > 2 and (not culprits or culprits != minority(vote_on_ways(places[1]), group)):
            continue
        return Difference("swapped", group, places[0], sides, culprits, "high" if culprits else "medium")
    return None


def _way(path: Sequence[Frame]) -> tuple[tuple[str, int] | None, ...]:
    return tuple(place_of(frame) for frame in path)


def _are_exclusive(one: RecordedCall, other: RecordedCall) -> bool:
    """Whether two calls stand on the two sides of one test: then a rank makes the one or the other, never both."""
    kinds = {(frame.file, frame.line): frame.function for frame in one.conditions}
    pairs = ({kinds.get((frame.file, frame.line)), frame.function} for frame in other.conditions)
    return any(pair in ({"if", "else"}, {"if", "unless"}) for pair in pairs)


def _swapped_at(usual: Line, odd: Line, start: int, stop: int, essences: Essences) -> tuple[int, int] | None:
    """Return the two sequence numbers at which two lines have changed places."""
    for number in range(start, stop):
        one, other = usual.at(number), odd.at(number)
        first, second = _way(essences.path(one)), _way(essences.path(other))
        if first == second or not first or not second:
            continue
        call = essences.log.calls[one[0]]
        if (call.op not in MEETING and call.root is None) or call.op == "barrier":
            continue
        if _are_exclusive(call, essences.log.calls[other[0]]):
            continue
        for later in range(number + 1, min(stop, number + 1 + AHEAD)):
            back = _way(essences.path(usual.at(later))), _way(essences.path(odd.at(later)))
            if back == (second, first) and essences.of(usual.at(later)) == essences.of(one):
                return number, later
            if back[0] == first or back[1] == second:
                break  # the next round of the same loop
    return None
