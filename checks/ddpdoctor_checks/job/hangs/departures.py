"""Which side of ranks that are stuck has left its way, by the calls before those in which they wait."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.job.calls import habits
from ddpdoctor_checks.job.hangs.standing import Place


def find_leaving(sides: Sequence[Sequence[Place]]) -> list[Sequence[Place]]:
    """Return the one side that has left its way, where all others are on theirs; nothing else."""
    found = habits.find_leaving([list_calls(side[0]) for side in sides])
    return [] if found is None else [sides[found]]


def list_calls(place: Place) -> list[Hashable]:
    """Return what tells a rank's latest calls apart, up to that in which it waits; none where it waits in none."""
    call, recent = place.call, list(place.stand.recent)
    if call is None or not recent:
        return []
    if (recent[-1].series, recent[-1].ordinal) != (call.series, call.ordinal):
        recent.append(call)
    lines = [user_line(each.frames) for each in recent]
    return [
        (each.op, each.group, each.shape, (line.file, line.line) if line is not None else None)
        for each, line in zip(recent, lines, strict=True)
    ]
