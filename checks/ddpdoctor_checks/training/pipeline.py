"""PRF007: stages of a pipeline that wait for each other through much of each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.timing import StageTimes
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, name_set
from ddpdoctor_checks.training.step_times import name_time

IDLE_SHARE, STEP_S = 0.4, 0.005
"""Least share of a step in which stages wait, and least length of a step in seconds."""
UNEVEN = 1.5
"""How many times as long as the others a stage has to be busy to be what they wait for."""
UNEXPLAINED = 0.25
"""Share of a step that the others have to wait beyond what the schedule makes them wait."""
FEWEST_LOOKS = 5
"""Steps that were looked at."""


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """What was seen on all nodes."""

    stages: int
    held: int
    micro_batches: int
    ranks: tuple[StageTimes, ...]
    line: Frame | None

    @property
    def depth(self) -> int:
        """Ranks that a micro-batch goes through, once or several times."""
        return -(-self.stages // self.held)

    @property
    def bubble(self) -> float:
        """Share of a step in which a stage of a balanced pipeline has nothing to do; 0 where that is not known.

        It is ``(p - 1) / (v m + p - 1)`` with p ranks, v stages on each and m micro-batches (Narayanan et al. 2021,
        section 2.2): of GPipe and 1F1B, and at most that of schedules that fill the bubble with other work.
        """
        idle, work = self.depth - 1, self.micro_batches * self.held
        return idle / (work + idle) if work else 0.0


@check("PRF007", family="training", needs=TRAINING, id="training.bubble", required=False, commands=JOB)
def find_bubble(evidence: Evidence) -> Iterator[Finding]:
    """Stages wait for each other through much of each step: too few micro-batches, or one that computes longer."""
    seen = _collect(evidence)
    if seen is None:
        raise NotApplicable("no pipeline of torch.distributed.pipelining was measured in enough steps")
    if median(each.step_s for each in seen.ranks) < STEP_S:
        return
    uneven = _find_longest(seen)
    if uneven is not None:
        yield _tell_uneven(seen, *uneven)
    elif min(seen.bubble, min(_share(each) for each in seen.ranks)) >= IDLE_SHARE:
        yield _tell_few(seen)


def _collect(evidence: Evidence) -> _Pipeline | None:
    found = [node.timing.pipeline for node in evidence.training if node.timing.pipeline is not None]
    found = [each for each in found if each.steps >= FEWEST_LOOKS]
    if not found:
        return None
    return _Pipeline(
        max(each.stages for each in found),
        max(each.held for each in found),
        max(each.micro_batches for each in found),
        tuple(rank for each in found for rank in each.ranks),
        next((line for each in found if (line := user_line(each.frames)) is not None), None),
    )


def _share(rank: StageTimes) -> float:
    return rank.waiting_s / rank.step_s if rank.step_s else 0.0


def _find_longest(seen: _Pipeline) -> tuple[list[StageTimes], list[StageTimes], float] | None:
    """Return the ranks of the stage that all others wait for, the others, and how much longer it is busy."""
    busiest = max(seen.ranks, key=lambda each: each.busy_s)
    own = [each for each in seen.ranks if each.stage == busiest.stage]
    others = [each for each in seen.ranks if each.stage != busiest.stage]
    if not others:
        return None
    usual = median(each.busy_s for each in others)
    ratio = median(each.busy_s for each in own) / usual if usual else 0.0
    waits = median(_share(each) for each in others)
    busy = median(_share(each) for each in own) < IDLE_SHARE  # else it waits too: for what all wait for
    uneven = busy and ratio >= UNEVEN and waits >= max(IDLE_SHARE, seen.bubble + UNEXPLAINED)
    return (own, others, ratio) if uneven else None


def _tell_uneven(seen: _Pipeline, own: list[StageTimes], others: list[StageTimes], ratio: float) -> Finding:
    ranks, rest = RankSet(each.rank for each in own), RankSet(each.rank for each in others)
    what = f"Stage {own[0].stage} ({name_set(ranks)})" if seen.held == 1 else capitalise(name_set(ranks))
    one = len({each.stage for each in others}) == 1
    theirs, waits = ("the other stage", "It waits") if one else ("the other stages", "They wait")
    busy, usual = (median(each.busy_s for each in some) for some in (own, others))
    return Finding(
        message=(
            f"{what} computes {ratio:.1f} times as long as {theirs} of the pipeline: {name_time(busy)} of each "
            f"step versus {name_time(usual)}. {waits} for {median(map(_share, others)):.0%} of each step."
        ),
        ranks=ranks,
        victims=rest,
        where=in_line(seen.line, ranks, "noticed"),
        evidence=_list_evidence(seen),
        fix=(Fix("balance the stages: move layers from the stage that is busy longest to the others"),),
        details=_list_details(seen),
        role="advice",
    )


def _tell_few(seen: _Pipeline) -> Finding:
    ranks = RankSet(each.rank for each in seen.ranks)
    count = seen.micro_batches
    keeps = "keeps" if count == 1 else "keep"
    return Finding(
        message=(
            f"Each rank of the pipeline waits for other stages for {min(map(_share, seen.ranks)):.0%} of each step or "
            f"more: {count_of(count, 'micro-batch', 'micro-batches')} {keeps} {count_of(seen.depth, 'rank')} busy for "
            f"{1 - seen.bubble:.0%} of it at most."
        ),
        ranks=ranks,
        where=in_line(seen.line, ranks, "noticed"),
        evidence=_list_evidence(seen),
        fix=(
            Fix(
                "split each batch into more micro-batches: four for each rank of the pipeline, or more",
                code=f"Schedule1F1B(stage, n_microbatches={4 * seen.depth}, loss_fn=loss_fn)",
            ),
            Fix(
                "give each rank several stages, which are interleaved",
                code="ScheduleInterleaved1F1B(stages, n_microbatches=n, loss_fn=loss_fn)",
            ),
        ),
        details=_list_details(seen),
        role="advice",
    )


def _list_evidence(seen: _Pipeline) -> tuple[EvidenceItem, ...]:
    shown = sorted(seen.ranks, key=lambda each: (each.stage, each.rank))[:16]
    words = (
        f"rank {each.rank} (stage {each.stage}) {name_time(each.waiting_s)} of {name_time(each.step_s)}"
        for each in shown
    )
    return (EvidenceItem("waiting", f"in a median step, for other stages: {', '.join(words)}"),)


def _list_details(seen: _Pipeline) -> dict[str, object]:
    return {
        "stages": seen.stages,
        "stages_of_a_rank": seen.held,
        "micro_batches": seen.micro_batches,
        "bubble": round(seen.bubble, 3),
        "waiting": {str(each.rank): round(_share(each), 3) for each in seen.ranks},
    }
