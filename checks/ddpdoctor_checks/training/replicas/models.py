"""The models that several ranks train, and what each look at a step says of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.layout import Layout
from ddpdoctor.evidence.training.fingerprints import (
    OptimizerSetup,
    StepLook,
    TensorLook,
    WrapperSetup,
)
from ddpdoctor.evidence.training.merging import join_optimizers
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.facts import strategies
from ddpdoctor_checks.training.wrappers import find_layout, list_data_groups

MOST_STEPS = 0.5
"""Elements that collectives carry in each step where gradients are averaged by hand, at least, as a share of the
parameters' elements."""
SEVERAL = 4
"""Steps between two looks that show what is carried in most steps."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One model over the ranks that should hold the same: a group of its wrapper, or all where nothing wraps it."""

    setup: OptimizerSetup
    model: int
    name: str
    """Name of the model's class."""
    ranks: RankSet
    looks: tuple[StepLook, ...]
    """Looks at steps, of these ranks and this model alone, in order."""
    wrapper: WrapperSetup | None = None
    kept: bool = False
    """Without a wrapper they are still known to be replicas: fully_shard or DTensor holds the same piece on them, or
    the program averages all gradients over them."""

    def agrees(self, look: StepLook) -> bool:
        """Whether all ranks have looked at a step and held the same: what one rank did not look at is not compared."""
        return len(look.values) == 1 and len(look.values[0].ranks) == len(self.ranks)


def agrees_over(look: StepLook, apart: Sequence[Share]) -> bool:
    """Whether ranks that differed before hold the same at a look, as far as they have looked.

    Args:
        look: a later one.
        apart: who agreed with whom before.
    """
    if len(look.values) != 1:
        return False
    ranks = set(look.values[0].ranks)
    return sum(any(rank in ranks for rank in share.ranks) for share in apart) > 1


def list_replicas(evidence: Evidence) -> list[Replica]:
    """Return the models that several ranks train, as far as it is known which ranks should hold the same."""
    replicas: list[Replica] = []
    groups = list_data_groups(evidence)
    layout = find_layout(evidence)
    by_hand = {g for axis in layout.axes if axis.strategy == strategies.BY_HAND.name for g in axis.groups}
    for setup, looks in join_optimizers(evidence.training):
        replicas += _split(setup, looks, groups, layout)
    # Another optimizer of the program may be the one whose gradients are averaged: an outer one, of local steps.
    return [
        replace(each, kept=True) if each.ranks in by_hand and is_carried_throughout(each) else each
        for each in replicas
    ]


def is_carried_throughout(replica: Replica) -> bool:
    """Whether collectives carry all of the parameters or gradients in most steps, over several of them.

    Steps behind a collective are looked at more often than others: what one of them carried is not what all do.
    """
    looks = [look for look in replica.looks if not look.final]
    pairs = [(look.step - before.step, look.carried) for before, look in itertools.pairwise(looks)]
    steps, carried = sum(each for each, _ in pairs), sum(each for _, each in pairs)
    several = any(count >= SEVERAL and moved >= count * MOST_STEPS for count, moved in pairs)
    return several or (steps > 0 and carried >= steps * MOST_STEPS)


def _split(
    setup: OptimizerSetup, looks: Sequence[StepLook], groups: Sequence[RankSet], layout: Layout
) -> list[Replica]:
    """Return the models of one optimizer, each over the ranks of its group, or that hold the same pieces of it."""
    if setup.peers:
        return _split_pieces(setup, looks, layout)
    models = {int(model): name for model, name in setup.models.items() if model.lstrip("-").isdigit()}
    listed = [{each.model for each in look.tensors} for look in looks if look.tensors]
    others = {*models, *(model for each in listed for model in each)}
    if any(0 not in each for each in listed):
        others.discard(0)  # before its first forward no model was known that has them
    wrapped = {each.number for each in setup.wrappers}
    parts: list[tuple[int, str, RankSet, WrapperSetup | None]] = []
    for each in setup.wrappers:
        if each.number in models:
            group = RankSet(rank for rank in each.group if rank in setup.ranks) if each.group else setup.ranks
            parts.append((each.number, each.model, group, each))
    for group in groups:
        own = RankSet(rank for rank in group if rank in setup.ranks)
        parts += [(model, name, own, None) for model, name in models.items() if model not in wrapped]
    return [
        Replica(
            setup,
            model,
            name.rpartition(".")[2],
            ranks,
            _restrict(looks, ranks, model, alone=setup.uniform and not others - {model}),
            wrapper,
        )
        for model, name, ranks, wrapper in parts
        if len(ranks) > 1
    ]


def _split_pieces(setup: OptimizerSetup, looks: Sequence[StepLook], layout: Layout) -> list[Replica]:
    """Return the models of an optimizer whose tensors are sharded: one for each set of ranks that hold the same.

    Ranks whose pieces have one name belong together only where a strategy connects them: the stages of a pipeline have
    layers of the same names.
    """
    peers = [*setup.peers, *(each for look in looks for tensor in look.tensors for each in tensor.peers)]
    sets = dict.fromkeys(part for each in peers for part in layout.part(each))
    wrappers = {str(each.number): each for each in setup.wrappers}
    found = []
    for ranks in sets:
        for model, name in setup.models.items() if len(ranks) > 1 else ():
            kept = [
                replace(
                    look,
                    tensors=tuple(
                        each for each in look.tensors if not each.peers or _is_in(ranks, each.peers)
                    ),
                )
                for look in looks
            ]
            restricted = _restrict(kept, ranks, int(model), alone=_is_in(ranks, setup.peers))
            found.append(
                Replica(
                    setup,
                    int(model),
                    name.rpartition(".")[2],
                    ranks,
                    restricted,
                    wrappers.get(model),
                    kept=True,
                )
            )
    return found


def _is_in(ranks: RankSet, sets: Iterable[RankSet]) -> bool:
    return any(all(rank in each for rank in ranks) for each in sets)


def _restrict(looks: Iterable[StepLook], ranks: RankSet, model: int, *, alone: bool) -> tuple[StepLook, ...]:
    """Return what looks say of some ranks and one model, which may be its optimizer's only one."""
    kept = set(ranks)

    def shares(given: Sequence[Share]) -> tuple[Share, ...]:
        cut = (replace(share, ranks=RankSet(rank for rank in share.ranks if rank in kept)) for share in given)
        return tuple(share for share in cut if share.ranks)

    def only(given: RankSet) -> RankSet:
        return RankSet(rank for rank in given if rank in kept)

    def tensor(given: TensorLook) -> TensorLook:
        return replace(
            given,
            values=shares(given.values),
            gradients=shares(given.gradients),
            trainable=only(given.trainable),
            missing=only(given.missing),
            reduced=only(given.reduced),
            ignored=only(given.ignored),
            idle=only(given.idle),
        )

    found = []
    for look in looks:
        tensors = tuple(tensor(each) for each in look.tensors if each.model == model)
        wrappers = tuple(
            replace(each, ranks=only(each.ranks)) for each in look.wrappers if each.number == model
        )
        found.append(
            replace(
                look,
                values=shares(look.values) if alone else _sum_up(tensors, "values", shares(look.values)),
                gradients=shares(look.gradients)
                if alone
                else _sum_up(tensors, "gradients", shares(look.gradients)),
                rates=shares(look.rates),
                rated=shares(look.rated),
                tensors=tensors,
                wrappers=tuple(each for each in wrappers if each.ranks),
                states=tuple(
                    replace(each, values=shares(each.values))
                    for each in look.states
                    if each.model == model or (alone and not each.parameter)
                ),
            )
        )
    return tuple(found)


def _sum_up(tensors: Sequence[TensorLook], name: str, whole: tuple[Share, ...]) -> tuple[Share, ...]:
    """Return the shares of the first parameter in which ranks differ; those of all parameters where these agree.

    None where nothing is known, or where only other tensors differ.
    """
    listed = (
        getattr(each, name) for each in tensors if each.kind == "parameter" and len(getattr(each, name)) > 1
    )
    return next(listed, whole if len(whole) == 1 else ())


def leave_ignored(replica: Replica) -> Replica:
    """Leave out parameters that DistributedDataParallel was told to leave to each rank."""
    if not any(each.ignored for look in replica.looks for each in look.tensors):
        return replica
    looks = []
    for look in replica.looks:
        tensors = tuple(each for each in look.tensors if not each.ignored)
        looks.append(
            replace(
                look,
                tensors=tensors,
                values=_sum_up(tensors, "values", look.values),
                gradients=_sum_up(tensors, "gradients", look.gradients),
            )
        )
    return replace(replica, looks=tuple(looks))
