"""Ranks that stand still: where each stands, what each called around that time, and when what was known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.native import leave_interpreter, name_native, telling_frame
from ddpdoctor.evidence.standstill import Stand, last_looks
from ddpdoctor.report.html.call_lanes import (
    TableView,
    Timeline,
    draw_timeline,
    make_table,
    name_call,
    own_frame,
    spot_of,
)
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.stacks import TreeRow, view_tree
from ddpdoctor.report.stacktree import NATIVE_SHOWN, is_in_backward
from ddpdoctor.report.words import format_ranks, format_seconds

CLASSES_SHOWN = 12
"""Ranks that stand at one place are one class."""
FRAMES_SHOWN = 16
LADDER_SHOWN = 20
STAGES = {
    "look": "sampled",
    "moving": "sampled: making progress",
    "brief": "sampled",
    "waiting": "waiting for ranks of other nodes",
    "proved": "deadlock proven: none of these ranks can make progress",
    "suspected": "suspected",
    "reminded": "still stalled",
    "confirmed": "confirmed",
    "withdrawn": "cleared: progress resumed",
}


@dataclass(frozen=True, slots=True)
class ClassView:
    """Ranks that stand at one place."""

    ranks: str
    doing: str
    place: str
    source: str | None
    still: str
    process: str
    frames: tuple[tuple[str, str], ...]
    waits: bool


@dataclass(frozen=True, slots=True)
class StandstillView:
    """The sample of a hang that the verdict rests on."""

    classes: tuple[ClassView, ...]
    timeline: Timeline
    table: TableView | None
    tree: tuple[TreeRow, ...]
    ladder: tuple[tuple[str, str, str], ...]
    """When (since the job began), what was known, for how long nothing had moved."""


def view_standstill(evidence: Evidence, caps: Caps) -> StandstillView | None:
    """Return the view of the last look; None where the job was never looked at."""
    look = last_looks(evidence.standstills)
    if look is None:
        return None
    return StandstillView(
        caps.take(_classes(look.stands), CLASSES_SHOWN, "places where ranks were blocked"),
        draw_timeline(look.stands, caps),
        make_table(look.stands, caps),
        view_tree(look.stands, caps),
        caps.take(
            [
                (
                    format_seconds(each.after_s),
                    STAGES.get(each.stage, each.stage),
                    format_seconds(each.still_s),
                )
                for each in sorted(evidence.standstills, key=lambda each: each.after_s)
            ],
            LADDER_SHOWN,
            "looks",
        ),
    )


def _classes(stands: Sequence[Stand]) -> list[ClassView]:
    groups: dict[tuple[object, ...], list[Stand]] = {}
    for stand in stands:
        call = stand.call
        inside = telling_frame(stand.native) if call is None else None
        spots = spot_of(call.frames if call else stand.frames), spot_of(stand.frames)
        key = (stand.alive, name_call(call), *spots, inside)
        groups.setdefault(key, []).append(stand)
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))
    return [_class(group) for group in ordered]


def _class(group: Sequence[Stand]) -> ClassView:
    first = group[0]
    call = first.call
    own = own_frame(call.frames if call is not None else first.frames)
    if not first.alive:
        doing = "gone"
        if first.signal is not None:
            doing = f"gone: signal {first.signal}"
        elif first.exit_code is not None:
            doing = f"gone: exit code {first.exit_code}"
        own = own_frame(first.exit_frames)
    else:
        native = telling_frame(first.native)
        inside = f", in {name_native(native)}" if native is not None else ""
        doing = f"in {name_call(call)}" if call is not None else f"outside of any collective{inside}"
        doing = "in the backward pass" if is_in_backward(first) else doing
    known = [stand.still_s if stand.watched else stand.asleep_s for stand in group]
    still = [seconds for seconds in known if seconds is not None]
    shares = [stand.cpu_share for stand in group if stand.cpu_share is not None]
    states = Counter(stand.state for stand in group if stand.state is not None)
    process = ", ".join(
        part
        for part in (
            f"{max(shares):.0%} of a core" if shares else "",
            f"state {states.most_common(1)[0][0]}" if states else "",
            first.wait_channel or "",
        )
        if part
    )
    return ClassView(
        format_ranks(RankSet(stand.rank for stand in group)),
        doing,
        f"{own.file}:{own.line}" if own is not None else "",
        own.source if own is not None else None,
        format_seconds(min(still)) if still else "–",
        process or "–",
        _list_frames(first),
        call is not None or is_in_backward(first),
    )


def _list_frames(stand: Stand) -> tuple[tuple[str, str], ...]:
    """Return function and place of the frames that are shown, the native ones first."""
    native = [(frame.function, frame.library) for frame in leave_interpreter(stand.native)[:NATIVE_SHOWN]]
    python = [(frame.function, f"{frame.file}:{frame.line}") for frame in stand.frames[:FRAMES_SHOWN]]
    return (*native, *python)
