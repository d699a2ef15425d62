"""The last collective that all ranks of a watched job began, where they did not give it the same arguments."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.collectives import CallLog, RecordedCall
from ddpdoctor_checks.job.calls.habits import LATEST, find_leaving
from ddpdoctor_checks.job.calls.sequences import UNEVEN, Essences, GroupCalls, Line, is_ring, read_groups
from ddpdoctor_checks.job.calls.votes import place_of

SHAPES = 3
"""Shapes of one call that a sentence holds."""


@dataclass(frozen=True, slots=True)
class LastSide:
    """Ranks that gave a call the same arguments."""

    ranks: RankSet
    call: RecordedCall
    site: Frame | None
    path: tuple[Frame, ...] = ()
    """The user's lines that it came from, innermost first."""


@dataclass(frozen=True, slots=True)
class LastCall:
    """A call that ranks began with arguments that do not match."""

    number: int
    group: GroupCalls
    sides: tuple[LastSide, ...]
    """The most ranks first."""
    left: tuple[LastSide, ...] = ()
    """The side whose call never followed those before it, where none has more than half of the ranks."""

    @property
    def odd(self) -> tuple[LastSide, ...]:
        """The sides that differ from that of more than half of the ranks; else `left`."""
        most = len(self.sides[0].ranks)
        return self.sides[1:] if 2 * most > sum(len(side.ranks) for side in self.sides) else self.left


def find_last_mismatch(evidence: Evidence) -> LastCall | None:
    """Return the last call that ranks have begun, where its arguments differ; None where they agree, or are not known.

    Args:
        evidence: of a watched job, whose ranks wrote each call down before they issued it.
    """
    for log in evidence.calls:
        if not is_ring(log):
            continue
        essences = Essences(log)
        for group in read_groups(log):
            lines = [line for line in group.lines.values() if line.numbers]
            number = min((line.last for line in lines), default=0)
            sides: dict[object, list[tuple[int, int]]] = {}
            for line in lines:
                at = line.at(number)
                if len(at) == 1:
                    sides.setdefault(_describe(log.calls[at[0]]), []).append((line.rank, at[0]))
            if len(sides) > 1:
                made = [
                    LastSide(
                        RankSet(rank for rank, _ in side),
                        log.calls[side[0][1]],
                        essences.site((side[0][1],)),
                        essences.path((side[0][1],)),
                    )
                    for side in sides.values()
                ]
                made.sort(key=lambda side: (-len(side.ranks), side.ranks.ranges[:1]))
                found = find_leaving(
                    [_list_calls(log, group.lines[next(iter(side.ranks))], number, essences) for side in made]
                )
                if found is not None:
                    others = [side.path for side in made if side is not made[found]]
                    made[found] = replace(made[found], site=_find_parting(made[found], others))
                return LastCall(number, group, tuple(made), () if found is None else (made[found],))
    return None


def _find_parting(side: LastSide, others: Sequence[tuple[Frame, ...]]) -> Frame | None:
    """Return the line of the innermost function that all sides are in, where it is not theirs: there ways part."""
    for frame in side.path:
        same = [
            [each.line for each in path if (each.file, each.function) == (frame.file, frame.function)]
            for path in others
        ]
        if all(same):
            return frame if all(frame.line not in lines for lines in same) else side.site
    return side.site


def _list_calls(log: CallLog, line: Line, number: int, essences: Essences) -> list[Hashable]:
    """Return what tells a rank's calls apart, up to a number."""
    told: list[Hashable] = []
    for each in range(max(line.first, number - LATEST), number + 1):
        for place in line.at(each):
            call = log.calls[place]
            told.append((_describe(call), call.inputs, place_of(essences.site((place,)))))
    return told


def _describe(call: RecordedCall) -> object:
    """Return what gloo and NCCL compare: nothing else is checked before the data is sent."""
    if call.op in UNEVEN or not call.inputs:
        return call.op, call.root
    sizes = tuple(_count(shape) for shape in call.inputs)
    return call.op, sizes, call.input_types, call.root, call.reduction


def list_differing(calls: Sequence[RecordedCall]) -> list[str]:
    """Return what calls do not have in common: op, shape, dtype, reduction, peer (the root)."""
    told = [
        (
            call.op,
            tuple(map(_count, call.inputs)) if call.inputs and call.op not in UNEVEN else None,
            call.input_types,
            call.reduction,
            call.root,
        )
        for call in calls
    ]
    names = ("op", "shape", "dtype", "reduction", "peer")
    return [name for name, column in zip(names, zip(*told, strict=True), strict=True) if len(set(column)) > 1]


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def describe_call(call: RecordedCall) -> str:
    """Return a call with what must agree: ``all_reduce of [4] float32``."""
    words = [
        each for each in (call.reduction, f"root {call.root}" if call.root is not None else None) if each
    ]
    text = call.op + (f"({', '.join(words)})" if words else "")
    shapes = call.inputs if call.inputs else call.outputs
    if not shapes:
        return text
    types = call.input_types or call.output_types
    same = set(types[: len(shapes)])
    shown = ", ".join(str(list(shape)) for shape in shapes[:SHAPES]) + (", …" if len(shapes) > SHAPES else "")
    return f"{text} of {shown}" + (f" {next(iter(same))}" if len(same) == 1 else "")
