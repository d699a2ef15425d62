"""Ranks that issue collectives on one group from two threads at once: in which order they meet is left to chance."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.standstill import Call
from ddpdoctor.judge import EvidenceItem, Finding, Fix
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import capitalise, choose_form, format_age, join_words, name_set
from ddpdoctor_checks.job.hangs.reading import Reading, name_call, name_line, part, ranks_of
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.waits import what_was_seen

THREADS = (
    "threading.py",
    "concurrent/futures/thread.py",
    "multiprocessing/pool.py",
    "multiprocessing/dummy/",
)
"""Files at the outer end of the stack of a thread that Python started; one of autograd's has none of them."""
CHECKPOINT = "torch/distributed/checkpoint/"
MOST_SIDES = 2


def find_beside(reading: Reading, stage: str) -> Finding | None:
    """Return that two threads of a rank wait in calls on one group; None where no rank is seen to do so.

    Args:
        reading: of a look.
        stage: of the look.
    """
    living = [place for place in reading.places if place.kind != "gone"]
    if any(place.moved for place in living):
        return None
    found = [(place, call) for place in living if (call := _find_second(place)) is not None]
    if not found:
        return None
    calls = {place.rank: call for place, call in found}
    sides = part((place for place, _ in found), lambda place: (calls[place.rank].op, place.key))
    told = join_words((_say(side, calls[side[0].rank]) for side in sides), few=MOST_SIDES)
    where = []
    for side in sides:
        for line in (user_line(calls[side[0].rank].frames), side[0].line):
            if line is not None:
                where.append(in_frame(line, ranks_of(side), "culprit"))
    return Finding(
        message=(
            f"{capitalise(told)}. Two threads use one group at once, so ranks issue its collectives in a "
            f"different order; no progress for {format_age(reading.look.still_s)}."
        ),
        code="COL004",
        ranks=ranks_of(place for place, _ in found),
        where=tuple(where),
        evidence=(
            *what_was_seen(reading),
            *(
                EvidenceItem("ring", f"another thread is blocked in {name_call(call)}", ranks_of([place]))
                for place, call in found[:4]
            ),
        ),
        fix=_advise([call for _, call in found]),
        details={"proof": False, "stage": stage, "threads": True},
        confidence="high" if stage == "confirmed" else "medium",
        decisive=True,
    )


def _find_second(place: Place) -> Call | None:
    """Return the call of another thread of a rank on the group in which its main thread waits."""
    call = place.call
    if call is None or not place.waits:
        return None
    for other in place.stand.beside:
        same = (
            other.group == call.group if call.group else bool(call.members) and other.members == call.members
        )
        if other.group and same and _is_of_python(other.frames):
            return other
    return None


def _is_of_python(frames: Sequence[Frame]) -> bool:
    return any(frame.file.endswith(THREADS) or "multiprocessing/dummy/" in frame.file for frame in frames)


def _say(side: Sequence[Place], call: Call) -> str:
    verb = choose_form(len(side), "waits", "wait")
    inside = " of an asynchronous checkpoint" if _is_checkpoint(call) else ""
    return (
        f"{name_set(ranks_of(side))} {verb} in {name_call(side[0].call)}{name_line(side[0].line)} and, on another "
        f"thread{inside}, in {name_call(call)}{name_line(user_line(call.frames))}"
    )


def _is_checkpoint(call: Call) -> bool:
    return any(CHECKPOINT in frame.file for frame in call.frames)


def _advise(calls: Sequence[Call]) -> tuple[Fix, ...]:
    own = 'background = dist.new_group(backend="gloo")   # on every rank, once\n'
    if any(map(_is_checkpoint, calls)):
        return (
            Fix(
                "use a separate group for the checkpoint, and wait for the previous save before the next one",
                code=f"{own}future = dcp.async_save(state, checkpoint_id=path, process_group=background)",
            ),
        )
    return (
        Fix("use a separate group for the thread", code=f"{own}dist.all_reduce(value, group=background)"),
        Fix("or issue all collectives of a group from one thread"),
    )
