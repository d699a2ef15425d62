"""COL013, DDP008 and NUM008: gradients averaged over the wrong ranks, not at all, or with unequal weights."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import LossWeights, OptimizerSetup, StepLook
from ddpdoctor.evidence.training.merging import join_optimizers
from ddpdoctor.facts import strategies
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words, name_set
from ddpdoctor_checks.training.data.batches import find_repeated
from ddpdoctor_checks.training.wrappers import (
    WrappedShards,
    find_layout,
    find_mixed,
    find_wrapped_shards,
    list_groups,
    list_wrappers,
)

UNEVEN = 1.5
"""How many times as much a token may count for in one loss as in another of the same step."""
FEWEST = 3
"""Steps that must have been looked at."""
MOST_STEPS = 0.6
"""Share of these in which the weights must differ so much: a last batch that is smaller is no fault."""
LISTED = 6


@check("COL013", family="training", needs=TRAINING, id="training.group_roles", required=False, commands=JOB)
def find_roles_wrong(evidence: Evidence) -> Iterable[Finding]:
    """Gradients are averaged over ranks that hold different parts of the model."""
    wrapped = find_wrapped_shards(evidence, [each.ranks for each in find_repeated(evidence)])
    if wrapped is not None:
        yield _tell_wrapped(wrapped)
    mixed = find_mixed(evidence)
    if mixed is None and wrapped is not None:
        return
    if mixed is None:
        axes = [axis for node in evidence.training for axis in node.layout.axes]
        if not any(axis.strategy == strategies.BY_HAND.name for axis in axes):
            raise NotApplicable("the program averages no gradients by itself")
        return
    step = user_line(mixed.setup.frames)
    line = user_line(mixed.setup.reduced) or step
    ranks = RankSet().union(*mixed.groups)
    of = f" of {mixed.tensor}" if mixed.tensor else ""
    groups, replicas = (
        join_words(f"{{{each}}}" for each in sets[:LISTED]) for sets in (mixed.groups, mixed.replicas)
    )
    yield Finding(
        message=(
            f"Gradients{of} are averaged{tell_line(line) if line != step else ''} over the groups {groups} before "
            f"the step{tell_line(step)}, and the ranks of each of them hold different parameters; those that started "
            f"with the same are {replicas}. Replicas are not kept equal, and gradients of different shards are mixed."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem(
                "gradients",
                f"those{of} are equal on {groups} and on no others at step 1, to the last bit",
                ranks,
            )
            if mixed.tensor
            else EvidenceItem(
                "collectives", f"carry all gradients over {groups} between backward pass and step", ranks
            ),
            EvidenceItem(
                "parameters", f"before step 1 those{of} are equal on {replicas} and on no others", ranks
            ),
        ),
        fix=(
            Fix(
                "average gradients across the ranks that hold the same shard of the model",
                code='mesh = init_device_mesh("cuda", (dp, tp), mesh_dim_names=("dp", "tp"))\n'
                'dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=mesh["dp"].get_group())',
            ),
        ),
        details={
            "groups": [str(each) for each in mixed.groups],
            "replicas": [str(each) for each in mixed.replicas],
        },
        confidence="high",
    )


def _tell_wrapped(wrapped: WrappedShards) -> Finding:
    line = user_line(wrapped.wrapper.frames)
    ranks = wrapped.wrapper.group
    peers, replicas = (
        join_words([f"{{{each}}}" for each in sets[:LISTED]]) for sets in (wrapped.peers, wrapped.replicas)
    )
    shards = join_words(wrapped.shards[:LISTED])
    return Finding(
        message=(
            f"DistributedDataParallel{tell_line(line)} averages gradients across {name_set(ranks)}, and the ranks of "
            f"{peers} hold different shards of the model: {shards}. It copies the shards of its first rank "
            "to all others and mixes gradients of different shards."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem(
                "parameters", f"when the model was wrapped, {shards} were equal on {replicas} only", ranks
            ),
            EvidenceItem("parameters", f"{wrapped.whole} was equal on all of them", ranks),
            EvidenceItem(
                "batches", f"the ranks of {peers} share a group and receive the same batches", ranks
            ),
        ),
        fix=(
            Fix(
                "give DistributedDataParallel the group of the ranks that hold the same shard",
                code='mesh = init_device_mesh("cuda", (dp, tp), mesh_dim_names=("dp", "tp"))\n'
                'model = DistributedDataParallel(model, process_group=mesh["dp"].get_group())',
            ),
        ),
        details={
            "groups": [str(ranks)],
            "replicas": [str(each) for each in wrapped.replicas],
            "parameters": list(wrapped.shards),
        },
        confidence="high",
    )


@check("DDP008", family="training", needs=TRAINING, id="training.sync_left_off", required=False, commands=JOB)
def find_sync_left_off(evidence: Evidence) -> Iterable[Finding]:
    """An optimizer steps parameters of modules that fully_shard was told not to reduce gradients of."""
    if not any(setup.peers for node in evidence.training for setup in node.optimizers):
        raise NotApplicable("no parameter was seen that fully_shard shards")
    for setup, looks in join_optimizers(evidence.training):
        off = [look for look in looks if look.unsynced and not look.final]
        if off:
            yield _tell_left_off(setup, off)


def _tell_left_off(setup: OptimizerSetup, off: list[StepLook]) -> Finding:
    ranks = RankSet().union(*(look.unsynced for look in off))
    line = user_line(setup.frames)
    kind = setup.kind.rpartition(".")[2]
    steps = join_words([str(look.step) for look in off[:LISTED]])
    return Finding(
        message=(
            f"{capitalise(name_set(ranks))} step {kind}{tell_line(line)} while gradient synchronization is "
            "off: set_requires_gradient_sync(False) or, for hybrid sharding, set_requires_all_reduce(False) was called "
            "and not undone before the last micro-batch, so its gradients were neither reduced nor passed to the "
            "optimizer."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(EvidenceItem("fully_shard", f"does not reduce gradients at step {steps}", ranks),),
        fix=(
            Fix(
                "enable it again for the micro-batch before the step",
                code="model.set_requires_gradient_sync(micro == last)\nloss.backward()",
            ),
        ),
        details={"steps": [look.step for look in off[:LISTED]]},
        confidence="high",
    )


@dataclass(frozen=True, slots=True)
class _Uneven:
    """How much more a token counted for in one loss than in another, step by step."""

    steps: tuple[int, ...]
    ratios: tuple[float, ...]
    within: bool
    """The micro-batches of one rank differ, and not only ranks."""
    example: StepLook


@check("NUM008", family="training", needs=TRAINING, id="training.loss_weights", required=False, commands=JOB)
def find_loss_uneven(evidence: Evidence) -> Iterable[Finding]:
    """The loss is a mean over unequal numbers of tokens, and these means are averaged."""
    if not any(look.weights for node in evidence.training for look in node.steps):
        raise NotApplicable("no mean of a cross-entropy was seen in a loss")
    if not list_wrappers(evidence) and not find_layout(evidence).list_groups(strategies.DATA):
        raise NotApplicable("no ranks were seen that average gradients")
    for setup, looks in join_optimizers(evidence.training):
        for group in list_groups(evidence):
            uneven = _find_uneven(looks, group)
            if uneven is not None:
                yield _tell_uneven(setup, group, uneven)
                break


def _find_uneven(looks: Iterable[StepLook], group: RankSet) -> _Uneven | None:
    by_look = {look.step: (look, [each for each in look.weights if each.rank in group]) for look in looks}
    by_step = {step: rows for step, (_, rows) in by_look.items() if rows}
    ratios = {
        step: _find_ratio(rows) for step, rows in by_step.items() if len({each.rank for each in rows}) > 1
    }
    apart = {step: ratio for step, ratio in ratios.items() if ratio > UNEVEN}
    if len(ratios) < FEWEST or len(apart) < MOST_STEPS * len(ratios):
        return None
    within = all(any(_spread(each.weights) > UNEVEN for each in by_step[step]) for step in apart)
    worst = max(apart, key=lambda step: apart[step])
    return _Uneven(tuple(apart), tuple(apart.values()), within, by_look[worst][0])


def _find_ratio(rows: Iterable[LossWeights]) -> float:
    return _spread([weight for row in rows for weight in row.weights])


def _spread(weights: Iterable[float]) -> float:
    sizes = [abs(weight) for weight in weights if weight]
    return max(sizes) / min(sizes) if sizes else 1.0


def _tell_uneven(setup: OptimizerSetup, group: RankSet, uneven: _Uneven) -> Finding:
    line = user_line(setup.weighed)
    what = "micro-batches and ranks" if uneven.within else "ranks"
    return Finding(
        message=f"The loss{tell_line(line)} is a mean over each {'micro-batch' if uneven.within else 'rank'}'s own "
        f"tokens or samples, whose numbers differ, and these means are averaged over {what}: a token counts for up to "
        f"{max(uneven.ratios):.1f} times as much as another of the same step.",
        ranks=group,
        where=in_line(line, group, "culprit"),
        evidence=tuple(_list_counts(uneven, group)),
        fix=(
            Fix(
                "sum over the tokens and divide by how many all ranks and micro-batches have together",
                code='loss = F.cross_entropy(logits, labels, reduction="sum")\n'
                "tokens = (labels != -100).sum()   # of all micro-batches of the step\n"
                "dist.all_reduce(tokens)\nloss = loss * dist.get_world_size() / tokens",
            ),
        ),
        details={"ratio": round(statistics.median(uneven.ratios), 2), "steps": list(uneven.steps[:16])},
        confidence="medium",
    )


def _list_counts(uneven: _Uneven, group: RankSet) -> Iterator[EvidenceItem]:
    for row in [each for each in uneven.example.weights if each.rank in group][:LISTED]:
        counts = join_words([f"{count:g}" for count in row.counts[:LISTED]])
        told = count_of(len(row.counts), "loss", "losses")
        yield EvidenceItem("tokens", f"step {uneven.example.step}: {told} over {counts}", RankSet([row.rank]))
