"""NUM007: gradients of one model are clipped by the norm of what each rank holds of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.layout import Layout
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook
from ddpdoctor.evidence.training.merging import join_optimizers
from ddpdoctor.facts import strategies
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words, name_set
from ddpdoctor_checks.training.wrappers import find_layout

APART = 0.05
"""Relative difference from which factors differ: those of one norm are equal but for rounding."""
LISTED = 8


@check("NUM007", family="training", needs=TRAINING, id="training.shard_norms", required=False, commands=JOB)
def find_scaled_apart(evidence: Evidence) -> Iterable[Finding]:
    """Ranks that hold shards of one model scale their gradients by different factors before the step."""
    if not any(look.scaled for node in evidence.training for look in node.steps):
        raise NotApplicable("no gradients of a sharded model were measured between a backward and a step")
    if all(
        abs(each.factor - 1) <= APART
        for node in evidence.training
        for look in node.steps
        for each in look.scaled
    ):
        raise NotApplicable(
            "no gradients were scaled before the sampled steps: a clip by norm may not have been reached"
        )
    layout = find_layout(evidence)
    told: set[int] = set()
    for setup, looks in join_optimizers(evidence.training):
        shared = {each.group: True for look in looks for each in look.scaled if each.group}
        for group, sure in (*shared.items(), *_list_groups(layout)):
            apart = [look for look in looks if _is_apart(_list_factors(look, group))]
            if apart and not told & set(group):
                told.update(group)
                yield _tell(setup, group, apart, sure=sure)


def _list_groups(layout: Layout) -> Iterator[tuple[RankSet, bool]]:
    """Yield the sets of ranks whose gradients are of one model, and whether it is sure that they hold shards of it."""
    for axis in layout.axes:
        known = strategies.STRATEGIES.get(axis.strategy)
        if known is not None and known.shards and axis.role in (strategies.DATA, strategies.TENSOR):
            yield from ((group, True) for group in axis.groups)
    for axis in layout.axes:
        if axis.role in (strategies.TENSOR, strategies.PIPELINE):
            yield from ((group, False) for group in axis.groups)


def _list_factors(look: StepLook, group: RankSet) -> dict[int, float]:
    return {each.rank: each.factor for each in look.scaled if each.rank in group}


def _is_apart(factors: Mapping[int, float]) -> bool:
    values = factors.values()
    return len(factors) > 1 and max(values) - min(values) > APART * max(values)


def _tell(setup: OptimizerSetup, group: RankSet, apart: list[StepLook], *, sure: bool) -> Finding:
    worst = max(apart, key=lambda look: _spread(_list_factors(look, group)))
    factors = _list_factors(worst, group)
    line = user_line(setup.scaled) or user_line(setup.frames)
    told = join_words([f"{factor:.4g} on rank {rank}" for rank, factor in factors.items()][:LISTED])
    return Finding(
        message=f"{capitalise(name_set(group))} hold parts of one model and scale its gradients by different "
        f"factors before the step{tell_line(line)}: {told}. Each rank clips by the norm of its own shard.",
        ranks=group,
        where=in_line(line, group, "culprit"),
        evidence=(
            EvidenceItem(
                "gradients", f"step {worst.step}: norm before the step, of that after backward, {told}"
            ),
            EvidenceItem("looks", f"they differ at {count_of(len(apart), 'sampled step')}"),
        ),
        fix=(
            Fix(
                "clip by the norm of all shards: torch's function knows DTensors, FullyShardedDataParallel has its own",
                code="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # fully_shard, parallelize_module\n"
                "model.clip_grad_norm_(1.0)                                # FullyShardedDataParallel",
            ),
            Fix(
                "sum a norm of your own across the ranks that hold other shards or stages before it is used",
                code="squares = sum(g.pow(2).sum() for g in local_gradients)\n"
                "dist.all_reduce(squares, group=shard_group)\nnorm = squares.sqrt()",
            ),
        ),
        details={
            "factors": {str(rank): factor for rank, factor in factors.items()},
            "steps": [look.step for look in apart][:LISTED],
        },
        confidence="high" if sure else "medium",
    )


def _spread(factors: Mapping[int, float]) -> float:
    return max(factors.values()) / min(factors.values())
