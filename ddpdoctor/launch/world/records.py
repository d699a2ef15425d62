"""What the world of a node left behind, as evidence."""

from __future__ import annotations

import dataclasses
from typing import Any

from ddpdoctor.evidence import Evidence, RankExit, RankSet, StageRecord, decode
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.launch.world.state import WORLD_STAGES, Ending, World


def collect(world: World, ending: Ending | None, origin: float) -> Evidence:
    """Return what this node's world left behind.

    Args:
        world: it.
        ending: why it was ended, if it was.
        origin: `time.monotonic` value of the start of the command.
    """
    rows: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    types = _row_types()
    for kind, data in [*world.rows, *(row for s in world.ranks.values() for row in s.rows)]:
        if kind in types:
            rows[kind].append(decode(types[kind], data))
    exits = [*world.exits, *_list_unexplained(world, ending)]
    rows["exits"].extend(dataclasses.replace(e, user_step=_find_user_step(world, e.rank)) for e in exits)
    rows["stages"].extend(_record(world, ending, stage, origin) for stage in WORLD_STAGES)
    found: dict[str, Any] = {kind: tuple(value) for kind, value in rows.items()}
    return Evidence(launch=world.plan.launch, **found)


def _find_user_step(world: World, rank: int) -> str | None:
    state = world.ranks.get(rank)
    return state.user_step if state else None


def _list_unexplained(world: World, ending: Ending | None) -> list[RankExit]:
    """Ranks that are gone although nobody of ours ended them and the agent cannot say why."""
    if world.exits or ending is None or ending.status != "failed":
        return []
    dead = [s for s in world.ranks.values() if s.gone and not s.finished and s.failed is None]
    if "died" not in ending.reason:
        return []
    detail = "the agent process was gone as well" if world.agent_gone else None
    return [RankExit(s.rank, s.pid or 0, s.stage, detail=detail) for s in dead]


def _record(world: World, ending: Ending | None, stage: str, origin: float) -> StageRecord:
    states = world.ranks
    record = StageRecord(world.plan.node, stage, "passed", limit_s=world.plan.limits[stage])
    if not world.plan.runs(stage):
        return dataclasses.replace(record, status="skipped", reason="not selected")
    begun = [s for s in states.values() if s.began(stage)]
    if begun:
        start = min(s.segments[stage][0].begin for s in begun)
        spent = [s.spent(stage) for s in begun]
        record = dataclasses.replace(
            record,
            started_s=start - origin,
            duration_s=max((v for v in spent if v is not None), default=None),
            finished=RankSet(s.rank for s in begun if s.completed(stage)),
            unfinished=RankSet(s.rank for s in begun if not s.completed(stage)),
        )
    if ending is not None and ending.stage == stage:
        start = min((s.segments[stage][0].begin for s in begun), default=world.started)
        return dataclasses.replace(
            record,
            status=ending.status,
            reason=ending.reason,
            started_s=start - origin,
            duration_s=ending.at - start,
            limit_s=record.limit_s if ending.limit_s is None else ending.limit_s,
            limit_option=ending.limit_option,
            stacks=ending.stacks,
            stacks_note=ending.stacks_note,
        )
    if len(record.finished) == world.plan.launch.nproc:
        return record
    return dataclasses.replace(record, status="unreached", reason=_explain_unreached(world, ending))


def _explain_unreached(world: World, ending: Ending | None) -> str:
    if world.blocked:
        return world.blocked
    if ending is not None:
        return f"the run ended in stage {ending.stage}: {ending.reason}"
    return "the ranks did not get that far"


def _row_types() -> dict[str, Any]:
    import typing

    hints = typing.get_type_hints(Evidence)
    return {
        kind: typing.get_args(hints[kind])[0] for kind in KINDS if typing.get_origin(hints[kind]) is tuple
    }
