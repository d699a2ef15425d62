"""Calls that ranks' Flight Recorders held: over time, and side by side with the first difference marked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.collectives import COMPLETED, RETIRED, CallLog, RankCalls
from ddpdoctor.evidence.standstill import Call, Stand
from ddpdoctor.report.html.call_lanes import ROWS_SHOWN, TableView, Timeline, draw_timeline, make_table
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.stacktree import is_foreign

KEPT, MOST_KEPT, LEAST_KEPT = 4 * ROWS_SHOWN, 50_000, 4
"""Newest calls of each rank that are looked at, which may be of several groups; those of all ranks; and of many ranks
at least of each."""


@dataclass(frozen=True, slots=True)
class RecordedView:
    """What was recorded last."""

    timeline: Timeline
    table: TableView | None


def view_recorded(evidence: Evidence, caps: Caps) -> RecordedView | None:
    """Return the view of recorded calls; None where there are none, or where the ranks themselves were looked at."""
    log = next((each for each in evidence.calls if len(each.ranks) > 1 and each.calls), None)
    if log is None or evidence.standstills:
        return None
    kept = max(LEAST_KEPT, min(KEPT, MOST_KEPT // len(log.ranks)))
    last = max(
        (max(row.begun_ns.part(max(0, len(row.begun_ns) - kept)), default=0) for row in log.ranks), default=0
    )
    calls: dict[int, Call] = {}
    stands = [_stand(log, row, kept, last, calls) for row in log.ranks]
    return RecordedView(draw_timeline(stands, caps, "last call"), make_table(stands, caps))


def _stand(log: CallLog, row: RankCalls, kept: int, last: int, known: dict[int, Call]) -> Stand:
    """Return a rank's newest calls, as if it had been looked at when the last call of all was made."""
    first = max(0, len(row.calls) - kept)
    recent: list[Call] = []
    waits: Call | None = None
    for place in range(first, len(row.calls)):
        number, state = row.calls[place], row.states[place]
        if number not in known:
            known[number] = _make_call(log, number)
        over = state & ~RETIRED == COMPLETED or bool(state & RETIRED)
        begun = row.begun_ns[place] if row.begun_ns else 0
        call = replace(
            known[number],
            ordinal=row.sequences[place],
            returned=over,
            age_s=max(0.0, (last - begun) / 1e9) if begun else None,
        )
        recent.append(call)
        if not over and waits is None:
            waits = call
    return Stand(row.rank, row.pid or 0, call=waits, recent=tuple(recent))


def _make_call(log: CallLog, number: int) -> Call:
    made = log.calls[number]
    group = log.groups[made.group]
    frames = log.frames_of(made)
    own = next((frame for frame in frames if not is_foreign(frame)), None)
    shapes, types = made.inputs or made.outputs, made.input_types or made.output_types
    return Call(
        made.op,
        group.name,
        group.ranks or RankSet(),
        shape=shapes[0] if shapes else None,
        dtype=types[0] if types else None,
        peer=made.peer if made.p2p else made.root,
        point_to_point=made.p2p,
        frames=(own,) if own is not None else (),
    )
