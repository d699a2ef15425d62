"""Made-up looks at ranks that stand still."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Call, Stand, Standstill
from ddpdoctor.judge import Finding, NotApplicable
from ddpdoctor_checks.job.hangs.progress import judge_look

TORCH = "/venv/lib/python3.11/site-packages/torch/"
ENGINE = Frame(f"{TORCH}autograd/graph.py", 869, "_engine_run_backward")
SYNC = Frame(f"{TORCH}nn/parallel/distributed.py", 2425, "_sync_buffers")
GUARD = Frame("train.py", 17, "if", "if rank == 0:")
WORLD = "0"
MODEL = "DistributedDataParallel"


def at(line: int, function: str = "train", source: str | None = "…", file: str = "train.py") -> Frame:
    return Frame(file, line, function, source)


def collective(
    op: str, number: int, line: int, world: int | RankSet = 4, group: str = WORLD, **more: Any
) -> Call:
    """A collective on the default group, or on one of its own."""
    members = RankSet.span(world) if isinstance(world, int) else world
    shape, dtype = more.pop("shape", (4,)), more.pop("dtype", "float32")
    if op == "barrier":
        shape = dtype = None
    return Call(
        op, group=group, members=members, ordinal=number, shape=shape, dtype=dtype, device="cpu", returned=False,
        default_group=group == WORLD, frames=(at(line),), **more,
    )  # fmt: skip


def point(op: str, peer: int | None, number: int, line: int, **more: Any) -> Call:
    """A send or receive on the default group of four."""
    return Call(
        op, group=WORLD, members=RankSet.span(4), ordinal=number, peer=peer, tag=more.pop("tag", 0), default_group=True,
        point_to_point=True, returned=None if op[0] == "i" else False, frames=(at(line),), **more,
    )  # fmt: skip


def forward(number: int, line: int, world: int | RankSet = 4, **more: Any) -> Call:
    """A forward of the first wrapper."""
    members = RankSet.span(world) if isinstance(world, int) else world
    return Call(
        f"{MODEL}.forward",
        members=members,
        ordinal=number,
        index=1,
        frames=(at(line),),
        returned=True,
        **more,
    )


def stand(rank: int, *calls: Call, line: int | None = None, **more: Any) -> Stand:
    """A rank and its calls; it stands in the last one where that is open, else at a line of its own."""
    counts: dict[str, int] = {}
    for call in calls:
        counts[call.series] = max(call.ordinal, counts.get(call.series, 0))
    last = calls[-1] if calls else None
    inside = last if last is not None and last.returned is False and line is None else None
    frames = more.pop("frames", None)
    if frames is None:
        frames = (
            (Frame(f"{TORCH}distributed/distributed_c10d.py", 1, inside.op), *inside.frames) if inside else ()
        )
        frames = (at(line),) if line is not None else frames
    past = tuple(replace(call, returned=True) if call.returned is False else call for call in calls[:-1])
    recent = (*past, calls[-1] if inside else replace(calls[-1], returned=calls[-1].returned is not None or None)) \
        if calls else ()  # fmt: skip
    return Stand(
        rank, 1000 + rank, call=inside, recent=recent, counts={**counts, **more.pop("counts", {})}, frames=frames,
        frames_before=more.pop("frames_before", frames), cpu_share=more.pop("cpu_share", 0.0), state="S",
        still_s=more.pop("still_s", 3.0), **more,
    )  # fmt: skip


def backward(
    rank: int, number: int, line: int, *before: Call, world: int | RankSet = 4, **more: Any
) -> Stand:
    """A rank that waits in the backward of its number-th forward."""
    frames = (ENGINE, Frame(f"{TORCH}_tensor.py", 1, "backward"), at(line))
    done = [*before, forward(number, line, world)]
    return replace(stand(rank, *done, frames=frames, **more), call=None)


def gone(rank: int, *calls: Call, **more: Any) -> Stand:
    """A rank that has ended."""
    made = stand(rank, *[replace(call, returned=True) for call in calls])
    return replace(made, **{"alive": False, "frames": (), "frames_before": (), "ended": True, **more})


def look(stands: Iterable[Stand], **more: Any) -> Standstill:
    listed = tuple(stands)
    world = more.pop("world", len(listed))
    still = more.pop("still", 3.0)
    return Standstill(Moment(0), 20.0, still, listed, world, interval_s=0.7, **more)


def judge(stands: Iterable[Stand], **more: Any) -> Finding | None:
    """Return what the checks say of one look."""
    evidence = Evidence(launch=Launch(command="run"), standstills=(look(stands, **more),))
    try:
        return judge_look(evidence)
    except NotApplicable:
        return None


def proved(stands: Sequence[Stand], **more: Any) -> Finding:
    """Return the finding, which has to be a proof."""
    found = judge(stands, **more)
    assert found is not None
    assert found.details["proof"] is True, found
    return found
