"""NUM009: gradients that are averaged across ranks are divided by the number of ranks once more, or their loss is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook
from ddpdoctor.evidence.training.merging import join_optimizers
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, join_words, name_set
from ddpdoctor_checks.training.wrappers import list_wrappers

LISTED = 8
"""Ranks whose parts of a loss are listed."""
LEAST = 2
"""Sampled steps that must agree."""
EXACT = 0.01
"""Relative rest up to which elements are a multiple of the mean across ranks: gradients may be carried in 16 bits.
And up to which all tokens of a step count for 1 together."""
NEAR = 0.02
"""Relative difference up to which that multiple is one over the number of ranks."""


@check(
    "NUM009", family="training", needs=TRAINING, id="training.own_reductions", required=False, commands=JOB
)
def find_divided_twice(evidence: Evidence) -> Iterable[Finding]:
    """The program averages gradients across ranks and divides them by the number of ranks once more."""
    if not any(look.reduced for node in evidence.training for look in node.steps):
        raise NotApplicable("no program that reduces its gradients by collectives of its own was seen")
    for setup, looks in join_optimizers(evidence.training):
        known = [look for look in looks if look.reduced and not look.final]
        groups = {each.group for look in known for each in look.reduced}
        if len(known) < LEAST or len(groups) != 1:
            continue
        group = groups.pop()
        shares = [_find_share(look, group) for look in known]
        wanted = 1 / len(group)
        if all(share is not None and abs(share - wanted) <= NEAR * wanted for share in shares):
            yield _tell(setup, group, known)


def _find_share(look: StepLook, group: RankSet) -> float | None:
    """Return how large a step's gradients are, as a share of the gradient of the mean loss across ranks.

    It follows from what each rank had after its backward pass, and from the factor by which its losses enter it: a loss
    that was multiplied by the number of ranks before, or accumulated, makes up for a division. None where gradients
    are no multiple of the mean, where they were reduced in the backward pass, and where losses are not known.
    """
    rows = {each.rank: each for each in look.reduced}
    weights = _weigh(look)
    before = [each.before for each in rows.values()]
    sizes = {len(each.before) for each in rows.values()} | {len(each.after) for each in rows.values()}
    if set(rows) != set(group) or not set(group) <= set(weights) or len(sizes) != 1 or len(set(before)) < 2:
        return None
    mean = [sum(each) / len(group) for each in zip(*before, strict=True)]
    square = sum(value * value for value in mean)
    weight = sum(weights[rank] for rank in group) / len(group)
    factors = []
    for row in rows.values():
        factor = sum(a * b for a, b in zip(row.after, mean, strict=True)) / square if square else 0.0
        rest = sum((a - factor * b) ** 2 for a, b in zip(row.after, mean, strict=True))
        if factor <= 0 or rest > EXACT * EXACT * factor * factor * square:
            return None
        factors.append(factor)
    return weight * sum(factors) / len(factors)


def _weigh(look: StepLook) -> dict[int, float]:
    """Return by rank what all its tokens or samples count for in a step: 1 where its loss is their mean."""
    return {
        each.rank: sum(map(math.prod, zip(each.counts, each.weights, strict=True))) for each in look.weights
    }


def _tell(setup: OptimizerSetup, group: RankSet, looks: list[StepLook]) -> Finding:
    count = len(group)
    line = user_line(setup.reduced) or user_line(setup.frames)
    return Finding(
        message=f"{capitalise(name_set(group))} reduce gradients{tell_line(line)} and step with 1/{count} of their "
        "mean across ranks: they are divided by the number of ranks twice. "
        f"The learning rate is in effect {count} times smaller.",
        ranks=group,
        where=in_line(line, group, "culprit"),
        evidence=(
            EvidenceItem(
                "gradients",
                f"elements before the step, at steps {', '.join(str(look.step) for look in looks[:8])}: 1/{count} of "
                "the mean of what the backward pass left on each rank",
                group,
            ),
        ),
        fix=(
            Fix(
                "divide once: ReduceOp.AVG divides by itself",
                code="dist.all_reduce(bucket, op=dist.ReduceOp.SUM)\nbucket.div_(dist.get_world_size())",
            ),
        ),
        details={"factor": 1 / count, "steps": [look.step for look in looks[:64]]},
    )


@check("NUM009", family="training", needs=TRAINING, id="training.loss_shares", required=False, commands=JOB)
def find_loss_shared(evidence: Evidence) -> Iterable[Finding]:
    """A loss is divided by the tokens of all ranks, and DistributedDataParallel averages its gradients once more.

    Then all tokens of a step count for 1 together, and not for 1 on each rank, whatever the parts of the ranks are. A
    factor that is the same in each step, such as a weight of 0.5, may be meant.
    """
    if not any(look.weights for node in evidence.training for look in node.steps):
        raise NotApplicable("no mean of a cross-entropy was seen in a loss")
    if not list_wrappers(evidence):
        raise NotApplicable("no DistributedDataParallel was seen that averages gradients")
    for setup, looks in join_optimizers(evidence.training):
        for group in dict.fromkeys(each.group for each in setup.wrappers if each.group and not each.hooks):
            shares = {look.step: _weigh(look) for look in looks if look.weights and not look.final}
            known = {
                step: [parts[rank] for rank in group]
                for step, parts in shares.items()
                if set(group) <= set(parts)
            }
            uneven = [step for step, parts in known.items() if max(parts) - min(parts) > NEAR * max(parts)]
            if len(uneven) >= LEAST and all(abs(sum(parts) - 1) <= EXACT for parts in known.values()):
                yield _tell_shared(setup, group, known)
                break


def _tell_shared(setup: OptimizerSetup, group: RankSet, known: Mapping[int, Sequence[float]]) -> Finding:
    count, first = len(group), min(known)
    line = user_line(setup.weighed) or user_line(setup.frames)
    parts = join_words(
        [f"{part:.3g} on rank {rank}" for rank, part in zip(group, known[first], strict=True)][:LISTED]
    )
    return Finding(
        message=f"The loss{tell_line(line)} is divided by the number of tokens or samples on all ranks, and "
        f"DistributedDataParallel averages the gradients of {name_set(group)} once more: these are 1/{count} of those "
        f"of the mean loss. The learning rate is in effect {count} times smaller.",
        ranks=group,
        where=in_line(line, group, "culprit"),
        evidence=(
            EvidenceItem(
                "losses",
                f"step {first}: all tokens count for {parts}, and for 1 together, as in each step",
                group,
            ),
        ),
        fix=(
            Fix(
                "multiply by the number of ranks, by which DistributedDataParallel divides",
                code="loss = loss_sum * dist.get_world_size() / tokens_of_all_ranks",
            ),
        ),
        details={"factor": 1 / count, "steps": list(known)[:64]},
        confidence="medium",
    )
