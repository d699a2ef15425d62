"""Where replicas part, and why: from who agrees with whom at each step to one cause for each model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import (
    StateLook,
    StepLook,
    TensorLook,
    WrapperSetup,
)
from ddpdoctor.evidence.training.merging import join_optimizers
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor_checks.common.wording import find_odd
from ddpdoctor_checks.training.replicas.apart import Divergence
from ddpdoctor_checks.training.replicas.models import (
    MOST_STEPS,
    Replica,
    agrees_over,
    is_carried_throughout,
    leave_ignored,
    list_replicas,
)
from ddpdoctor_checks.training.replicas.origins import add_cause, join_groups
from ddpdoctor_checks.training.replicas.shared_parts import find_shared_diverged
from ddpdoctor_checks.training.wrappers import list_wrappers

WHOLE = 0.9
"""Share of a model's parameters that is carried between two looks from which on they may have been averaged."""
SEVERAL_AVERAGINGS = 2
"""Averagings of as much as the parameters from which on they are no single evaluation."""
LAST_BITS = 1e-6
"""Relative difference of norms up to which parameters count as equal but for their last bits, where the
gradients agree."""


def judge_replicas(evidence: Evidence) -> list[Divergence]:
    """Return for each model whose replicas diverged how and why."""
    found = []
    replicas = list_replicas(evidence)
    for replica in replicas:
        divergence = _judge(leave_ignored(replica))
        if divergence is not None and _is_after_averaging(divergence, replicas):
            continue
        if divergence is not None and divergence.code == "DDP015" and not replica.kept:
            divergence = _weigh_unwrapped(evidence, divergence)
        if divergence is not None:
            found.append(add_cause(evidence, divergence))
    return join_groups(found)


def _is_after_averaging(divergence: Divergence, replicas: Sequence[Replica]) -> bool:
    """Whether ranks differ at the end only, where another optimizer makes local steps of the same model.

    Those of its steps that come after the last averaged one are seen there.
    """
    own, first = divergence.replica, divergence.first
    if first is None or not first.final or not own.kept or own.setup.peers:
        return False
    return any(each.setup.number in own.setup.alongside and each.model == own.model for each in replicas)


def _judge(replica: Replica) -> Divergence | None:
    sure = [look for look in replica.looks if look.final or not look.joined]
    diverged = [look for look in sure if len(look.values) > 1]
    unequal = [look for look in sure if len(look.gradients) > 1 or _partly_missing(look)]
    if not diverged and not unequal:
        return None
    first, gradients = next(iter(diverged), None), next(iter(unequal), None)
    if first is not None and _agree_after(replica, first, first.values):
        return None  # equal again: averaged between steps, or broadcast
    if first is None and gradients is not None:
        later = [look for look in replica.looks if look.step > gradients.step]
        # What differs of several models is not always known: it is no difference of this one.
        if any(not look.values for look in later) or _agree_after(
            replica, gradients, _part_gradients(gradients)
        ):
            return None  # gradients differ, and what was made of them does not
    at_start = first is not None and first.step == 1
    if replica.wrapper is None and replica.kept:
        return _judge_kept(replica, first, gradients, at_start)
    if replica.wrapper is None:
        return _judge_unwrapped(replica, first, gradients, at_start)
    confidence = "high" if first is not None else "medium"
    if gradients is not None and (first is None or gradients.step <= first.step) and not at_start:
        return replace(_explain(replica, replica.wrapper, first, gradients), confidence=confidence)
    if first is None:
        return None
    differing = tuple(each for each in first.tensors if len(each.values) > 1)
    parameters = {each.name: each for each in differing if each.kind == "parameter"}
    if gradients is not None:
        parameters |= {each.name: each for each in gradients.tensors if len(each.gradients) > 1}
        added = tuple(parameters.values())
        if added and not any(each.reduced or each.ignored for each in added):
            # Each rank has drawn its own: DistributedDataParallel would have made them equal at the wrap.
            return Divergence("DDP006", replica, first, gradients, added, replica.ranks, at_start=at_start)
    if _lacks_forwards(replica, first):
        ranks = RankSet().union(*(way.ranks for way in first.wrappers))
        return Divergence("DDP008", replica, first, None, differing, ranks, first.wrappers[0], between=True)
    rated = bool(find_rates(replica, first.step))
    stated = _find_state(replica, first) if not rated else None
    if stated is not None:
        step, state = stated
        ranks = _minority(state.values)
        return Divergence("NUM006", replica, first, gradients, differing, ranks, state=state, state_step=step)
    return Divergence(
        "NUM006" if rated and not at_start else "NUM001",
        replica,
        first,
        gradients,
        differing,
        _minority(first.values),
        at_start=at_start,
        slight=_is_slight(replica, first, gradients),
    )


def _agree_after(replica: Replica, apart: StepLook, shares: Sequence[Share]) -> bool:
    """Whether ranks that differ at one look hold the same at a later one."""
    return any(look.step > apart.step and agrees_over(look, shares) for look in replica.looks)


def _part_gradients(look: StepLook) -> Sequence[Share]:
    """Return which ranks have the same gradients; those that have none of a tensor are another part."""
    lacking = (
        (*each.gradients, Share("", each.missing)) for each in look.tensors if _differs_in_missing(each)
    )
    return look.gradients if len(look.gradients) > 1 else next(lacking, ())


def _lacks_forwards(replica: Replica, first: StepLook) -> bool:
    """Whether the steps up to the look at which parameters differ outnumber the forwards that reduce.

    Its forwards are those since the look before, at which gradients were equal. So are its own gradients: the steps
    that lack a forward lie in between.
    """
    if first.step == 1 or len(first.gradients) > 1 or not first.wrappers:
        return False
    made = first.step - first.final - last_before(replica, first)
    return all(0 <= way.synced < made and way.alone > 0 for way in first.wrappers)


def last_before(replica: Replica, look: StepLook) -> int:
    """Return the step of the look before one; 0 where it is the first."""
    return max((each.step for each in replica.looks if each.step < look.step), default=0)


def find_rates(replica: Replica, until: int | None = None) -> tuple[Share, ...]:
    """Return the learning rates, or else their sums over all steps, of the first look at which ranks differ in them.

    Args:
        replica: the ranks and their looks.
        until: the last step that counts; None for all.
    """
    looks = [look for look in replica.looks if until is None or look.step <= until]
    uneven = len(replica.setup.steps) > 1
    now = next((look.rates for look in looks if len(look.rates) > 1), ())
    return now or next(
        (look.rated for look in looks if len(look.rated) > 1 and not (look.final and uneven)), ()
    )


def _find_state(replica: Replica, first: StepLook) -> tuple[int, StateLook] | None:
    """Return the part of the optimizer's state that differs before parameters do, and before which step."""
    if not replica.setup.uniform:
        return None  # each rank holds the state of other parameters
    for look in replica.looks:
        if look.step >= first.step:
            break
        differing = [each for each in look.states if len(each.values) > 1]
        if differing and len(look.values) == 1:
            return look.step, next(
                (each for each in differing if each.parameter or each.setting), differing[0]
            )
    return None


def _judge_kept(
    replica: Replica, first: StepLook | None, gradients: StepLook | None, at_start: bool
) -> Divergence | None:
    """Ranks that hold the same part of a model without a wrapper: their parameters are equal, or replicas diverged."""
    if first is None or not replica.setup.uniform:
        return None
    if not replica.setup.peers and gradients is not None and gradients.step <= first.step and not at_start:
        # What the program averages is not what the optimizer uses: copies, or too late.
        own = tuple(each for each in gradients.tensors if len(each.gradients) > 1)
        return Divergence("DDP015", replica, first, gradients, own, replica.ranks, confidence="medium")
    differing = tuple(each for each in first.tensors if len(each.values) > 1)
    slight = _is_slight(replica, first, gradients)
    ranks = _minority(first.values)
    return Divergence("NUM001", replica, first, gradients, differing, ranks, at_start=at_start, slight=slight)


def _judge_unwrapped(
    replica: Replica, first: StepLook | None, gradients: StepLook | None, at_start: bool
) -> Divergence | None:
    """A model that nothing reduces; one that differs from the beginning may be meant to: another one on each rank."""
    if not replica.setup.uniform or gradients is None or first is None:
        return None
    if any(each.reduced for each in (*first.tensors, *gradients.tensors)):
        return None
    return Divergence(
        "DDP015",
        replica,
        first,
        gradients,
        tuple(each for each in gradients.tensors if len(each.gradients) > 1),
        replica.ranks,
        at_start=at_start,
    )


def _weigh_unwrapped(evidence: Evidence, divergence: Divergence) -> Divergence | None:
    """Say how sure it is that the ranks' models are meant to be one; None for parts of a model.

    A sampler that cuts the data into as many parts as there are ranks tells that they are, and so do collectives that
    carry as much as the parameters in each step. Folds, members of an ensemble and trials of a search have neither.
    """
    replica, world = divergence.replica, len(divergence.replica.ranks)
    shared = find_shared_diverged(replica) if divergence.at_start and is_moved(replica, "carried") else None
    if shared is not None:
        told = replace(
            divergence, code="NUM001", first=shared[1], gradients=shared[0], tensors=shared[1].tensors
        )
        return replace(told, at_start=False, shared=True, confidence="low")
    loaders = [loader for node in evidence.training for loader in node.loaders]
    trained = {look.loader for node in evidence.training for look in node.epochs if look.steps}
    sharded = any(
        loader.replicas == world and loader.loader in trained for loader in loaders
    ) and not _is_trained_apart(evidence, divergence)
    batches = [look for node in evidence.training for look in node.batches if look.model == replica.model]
    if not sharded and any(len(share.ranks) > 1 for look in batches for share in look.batches):
        return None
    rates = bool(find_rates(replica))
    partly = divergence.at_start and not _differs_throughout(divergence)
    if rates or partly or is_moved(replica, "exchanged") or _has_rounds(evidence, replica):
        return replace(divergence, confidence="low", advice=True)
    never_due = replica.setup.rounds and not divergence.at_start and not _was_carried(replica)
    overdue = replica.setup.rounds[0] if never_due else None
    if sharded:
        return replace(divergence, confidence="medium" if divergence.at_start else "high", overdue=overdue)
    in_vain = (
        replica.setup.averagings >= SEVERAL_AVERAGINGS
        and not divergence.at_start
        and _never_agree(divergence)
    )
    if is_carried_throughout(replica) and batches and not divergence.at_start:
        return replace(divergence, confidence="medium", vain=in_vain, often=True)
    if overdue is not None:
        return replace(divergence, confidence="medium", overdue=overdue)
    if in_vain:
        return replace(divergence, confidence="low", vain=True)
    return replace(divergence, confidence="low", advice=True, unsure=not divergence.at_start)


def _is_trained_apart(evidence: Evidence, divergence: Divergence) -> bool:
    """Whether a sampler's data is that of another model, which is wrapped: a probe, a head that each rank fits itself.

    Models that train in one loop step in a fixed ratio. Only where this one was not equal on all ranks at first.
    """
    if not divergence.at_start:
        return False
    wrapped = {wrapper.number for wrapper in list_wrappers(evidence)}
    own: set[int] = set()
    others: set[int] = set()
    for setup, looks in join_optimizers(evidence.training):
        counts = {int(share.digest) for share in setup.steps if share.digest.isdigit()}
        counts = counts or {look.step - look.final for look in looks[-1:]}
        if setup.number == divergence.replica.setup.number:
            own |= counts
        elif any(int(model) in wrapped for model in setup.models):
            others |= counts
    return bool(own and others) and not any(
        max(one, other) % max(1, min(one, other)) <= 1 for one in own for other in others
    )


def _has_rounds(evidence: Evidence, replica: Replica) -> bool:
    """Whether the ranks part under one optimizer and are equal where the next one begins: averaged in between.

    Optimizers that are stepped in turn, such as those of a generator and a discriminator, are no rounds.
    """
    rows = [
        each
        for each in list_replicas(evidence)
        if each.name == replica.name
        and each.ranks == replica.ranks
        and each.setup.parameters == replica.setup.parameters
    ]
    return any(
        _has_diverged(before)
        and before.setup.number not in after.setup.alongside
        and any(look.step == 1 and after.agrees(look) for look in after.looks)
        for before, after in itertools.pairwise(rows)
    )


def _has_diverged(replica: Replica) -> bool:
    return any(len(look.values) > 1 for look in replica.looks)


def _differs_throughout(divergence: Divergence) -> bool:
    """Whether all that the optimizer steps differs; where a part is kept equal, the rest may be a rank's own."""
    setup, gradients = divergence.replica.setup, divergence.gradients
    return gradients is not None and not setup.wrappers and gradients.differing >= setup.parameters


def _never_agree(divergence: Divergence) -> bool:
    """Whether no two ranks held the same in any sample since they differ: some may be averaged more often than all."""
    first, count = divergence.first, len(divergence.replica.ranks)
    looks = [look for look in divergence.replica.looks if first is not None and look.step >= first.step]
    return all(len(look.values) == count for look in looks)


def _was_carried(replica: Replica) -> bool:
    """Whether the program's own calls may once have carried all of the parameters."""
    return any(look.carried >= WHOLE or look.exchanged >= WHOLE for look in replica.looks)


def is_moved(replica: Replica, name: str) -> bool:
    """Whether the program's own calls carry all of the parameters or gradients in most steps.

    Args:
        replica: a model and its looks.
        name: ``carried`` by collectives, or ``exchanged`` by sends and receives.
    """
    looks = [look for look in replica.looks if not look.final]
    return any(
        getattr(look, name) >= (look.step - before.step) * MOST_STEPS
        for before, look in itertools.pairwise(looks)
    )


def _explain(
    replica: Replica, wrapper: WrapperSetup, first: StepLook | None, gradients: StepLook
) -> Divergence:
    """Return why gradients differ of a model that is wrapped."""
    tensors = tuple(
        each for each in gradients.tensors if len(each.gradients) > 1 or _differs_in_missing(each)
    )
    told = Divergence("NUM001", replica, first, gradients, tensors, _minority((first or gradients).values))
    around = [way for way in gradients.wrappers if way.synced == 0 and way.alone == 0]
    if around:
        ranks = RankSet().union(*(way.ranks for way in around))
        seen = next((way for way in around if way.bypassed), around[0])
        return replace(told, code="DDP005", ranks=ranks, way=seen)
    unsynced = [way for way in gradients.wrappers if way.last_synced is False and way.alone > 0]
    if unsynced:
        ranks = RankSet().union(*(way.ranks for way in unsynced))
        return replace(told, code="DDP008", ranks=ranks, way=unsynced[0])
    unknown = tuple(each for each in tensors if not each.reduced and not each.ignored)
    if unknown and len(unknown) == len(tensors):
        return replace(told, code="DDP006", ranks=replica.ranks, tensors=unknown)
    lacking = tuple(
        each
        for each in gradients.tensors
        if any(rank in each.reduced and rank in each.trainable for rank in each.missing)
    )
    if lacking and not wrapper.find_unused_parameters and not wrapper.hooks:
        everywhere = any(len(each.missing) == len(replica.ranks) for each in lacking)
        ranks = replica.ranks if everywhere else RankSet().union(*(each.missing for each in lacking))
        return replace(told, code="DDP001" if everywhere else "DDP002", ranks=ranks, tensors=lacking)
    return told


def _differs_in_missing(tensor: TensorLook) -> bool:
    """Some ranks have a gradient of it and others that train it have none."""
    return bool(tensor.missing) and bool(tensor.gradients)


def _partly_missing(look: StepLook) -> bool:
    return any(_differs_in_missing(each) for each in look.tensors)


def _minority(shares: Sequence[Share]) -> RankSet:
    """Return the ranks that differ from the most; all where no part is larger than the others, or there is one."""
    parts = [share.ranks for share in shares]
    return find_odd(parts) or RankSet().union(*parts)


def _is_slight(replica: Replica, first: StepLook, gradients: StepLook | None) -> bool:
    """Whether ranks differ in the last bits only, as far as the last look with norms tells."""
    if gradients is not None:
        return False
    listed = [look for look in replica.looks if look.step >= first.step and look.tensors]
    differing = [each.values for each in (listed[-1].tensors if listed else ()) if len(each.values) > 1]
    return bool(differing) and all(differ_slightly([share.norm for share in values]) for values in differing)


def differ_slightly(norms: Sequence[float | None]) -> bool:
    """Whether norms are all known and differ in their last bits only."""
    known = [norm for norm in norms if norm is not None]
    return len(known) == len(norms) and max(known) - min(known) <= LAST_BITS * max(max(known), 1e-30)
