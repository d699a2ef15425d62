"""Ranks that died, and exceptions that ended a stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import STAGES, Evidence, Launch, RankError, RankExit, RankMessage, RankSet, encode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, Where, check
from ddpdoctor_checks.backends.stages import KILLED, MOST_STACKS
from ddpdoctor_checks.common.commands import examine_again
from ddpdoctor_checks.common.frames import find_line
from ddpdoctor_checks.common.places import Places
from ddpdoctor_checks.common.stage_evidence import (
    FROM_OUTSIDE,
    assign_blame,
    describe_deaths,
    describe_exit,
    explain_missing,
    gather_ranks,
    hosts_of_ranks,
    shorten_error,
    stage_records,
    unclean_exits,
)
from ddpdoctor_checks.common.wording import capitalise, join_words, name_set

GROUP_STAGES = ("rendezvous", "backends", "collectives", "ddp", "bandwidth", "strategies")
"""Stages in which ranks exist and talk to each other."""


@check("BKD002", family="backends", needs=("exits",), id="bkd.ranks.alive")
def find_rank_died(evidence: Evidence) -> Iterable[Finding]:
    """No rank of the tiny world died by a signal or an exit before its clean end."""
    dead = unclean_exits(evidence, (None, *STAGES))
    if not dead:
        if not stage_records(evidence, "rendezvous") and not evidence.exits and not evidence.ranks:
            raise CannotLook("no rank was started")
        return
    by_stage: dict[str | None, list[RankExit]] = {}
    for each in dead:
        by_stage.setdefault(each.stage, []).append(each)
    order: tuple[str | None, ...] = (None, *STAGES)
    for stage in sorted(by_stage, key=order.index):
        yield _died(evidence, stage, by_stage[stage])


def _died(evidence: Evidence, stage: str | None, dead: Sequence[RankExit]) -> Finding:
    ranks = RankSet(each.rank for each in dead)
    records = stage_records(evidence, stage) if stage else ()
    peers = RankSet().union(*(record.unfinished for record in records))
    peers = peers.union(RankSet(each.rank for each in evidence.errors if each.stage == stage))
    sent = {each.signal for each in dead} <= FROM_OUTSIDE
    when = f" in stage {stage}" if stage else " before its first stage"
    until = STAGES[: STAGES.index(stage) + 1] if stage in STAGES else STAGES[:4]
    native = Fix(
        "find out where it crashed: rerun that stage with faulthandler enabled",
        command=examine_again(
            evidence.launch, "--only", ",".join(until), "-v", settings="PYTHONFAULTHANDLER=1"
        ),
    )
    text = describe_deaths(dead)
    return Finding(
        message=f"{capitalise(text)}{when}{', from outside' if sent else ''}.",
        ranks=ranks,
        victims=peers.minus(ranks),
        nodes=hosts_of_ranks(evidence, ranks),
        evidence=tuple(
            EvidenceItem("exit", f"pid {each.pid} {describe_exit(each)}", RankSet([each.rank]))
            for each in dead[:8]
        ),
        fix=(KILLED if sent else native,),
        details=encode(
            {
                "stage": stage,
                "exits": list(dead[:MOST_STACKS]),
                "exits_left_out": max(0, len(dead) - MOST_STACKS),
            }
        ),
    )


@check("BKD002", family="backends", needs=("errors", "stages"), id="bkd.stages.without_error")
def find_stage_error(evidence: Evidence) -> Iterable[Finding]:
    """No stage in which ranks talk to each other was ended by an exception."""
    if not any(record.stage in GROUP_STAGES for record in evidence.stages):
        raise explain_missing(evidence, "rendezvous", "the ranks")
    errors = [
        each for each in evidence.errors if each.stage in GROUP_STAGES and not _told_elsewhere(evidence, each)
    ]
    if _somebody_missing(evidence):
        errors = [each for each in errors if each.stage != "rendezvous"]  # NET006 says who
    for stage in GROUP_STAGES:
        raised = [each for each in errors if each.stage == stage]
        if raised:
            yield _raised(evidence, stage, raised)
    if not evidence.errors and not evidence.exits and not _somebody_missing(evidence):
        yield from _find_broken(evidence)
    if not errors and all(
        r.status in ("skipped", "unreached") for r in evidence.stages if r.stage in GROUP_STAGES
    ):
        raise explain_missing(evidence, "rendezvous", "the ranks")


def _find_broken(evidence: Evidence) -> Iterable[Finding]:
    """Find stages that failed although no rank did: torch's elastic agent raised, or could not start any."""
    for stage in GROUP_STAGES:
        records = stage_records(evidence, stage)
        failed = [record for record in records if record.status == "failed" and record.reason]
        if failed and not any(record.status == "cut" for record in records):
            hosts = Places(evidence).hosts(record.node for record in failed)
            yield Finding(
                message=f"Stage {stage} failed on {join_words(hosts)}: {failed[0].reason}",
                nodes=hosts,
                evidence=tuple(EvidenceItem("stage", record.reason or "") for record in failed[:6]),
                fix=_error_fixes(evidence.launch, stage),
                details={"stage": stage, "type": "agent", "messages": len(failed)},
                confidence="low",  # nobody of the ranks said anything; whatever else was found is likelier
            )


def _told_elsewhere(evidence: Evidence, error: RankError) -> bool:
    """Whether an error only repeats what its probe has emitted as evidence, which has checks of its own."""
    if error.type != "ProbeError":
        return False
    if error.stage == "backends":
        return any(each.failures for each in evidence.backends)
    if error.stage == "collectives":
        return any(each.failures for each in evidence.collectives) or any(
            each.failures for each in evidence.initialisations
        )
    if error.stage == "strategies":
        return any(each.failures for each in evidence.strategies)
    if error.stage == "ddp":
        return any(each.failures for each in evidence.experiments) or any(
            each.errors for each in evidence.model
        )
    return False


def _somebody_missing(evidence: Evidence) -> bool:
    return any(
        len(each.joined_ranks) < each.expected_ranks or len(each.joined_nodes) < each.expected_nodes
        for each in evidence.rendezvous
    )


def _raised(evidence: Evidence, stage: str, raised: Sequence[RankError]) -> Finding:
    records = stage_records(evidence, stage)
    finished = RankSet().union(*(record.finished for record in records))
    blame = assign_blame(
        evidence, [RankMessage(RankSet([each.rank]), each.message) for each in raised], finished
    )
    quoted = gather_ranks(blame.said)
    groups: dict[tuple[str, str], list[RankError]] = {}
    for each in raised:
        if each.rank in quoted:
            groups.setdefault((each.type, each.message), []).append(each)
    (kind, text), members = next(iter(groups.items()))
    same = RankSet(each.rank for each in members)
    echo = blame.role == "consequence" or any(record.status == "cut" for record in records)
    line = find_line(members[0].frames)
    role = "victim" if blame.silence else "culprit"
    return Finding(
        message=f"Stage {stage} ended with {kind} on {name_set(same)}: {shorten_error(text)}{blame.silence}",
        ranks=blame.ranks,
        victims=blame.victims,
        nodes=hosts_of_ranks(evidence, blame.ranks),
        where=(Where(same, role, line.file, line.line, line.function),) if line else (),
        evidence=tuple(
            EvidenceItem("rank", f"{name}: {message}", RankSet(each.rank for each in group))
            for (name, message), group in list(groups.items())[:6]
        ),
        fix=_error_fixes(evidence.launch, stage),
        details={"stage": stage, "type": kind, "messages": len(groups)},
        role="consequence" if echo and blame.silence else "cause",
        confidence=blame.confidence,
    )


def _error_fixes(launch: Launch, stage: str) -> tuple[Fix, ...]:
    stages = ",".join(STAGES[: STAGES.index(stage) + 1])
    settings = (
        "NCCL_DEBUG=INFO"
        if launch.backend == "nccl"
        else "TORCH_CPP_LOG_LEVEL=INFO TORCH_DISTRIBUTED_DEBUG=INFO"
    )
    return (
        Fix(
            "rerun the stages up to this one with the backend's own messages",
            command=examine_again(launch, "--only", stages, "-v", settings=settings),
        ),
    )
