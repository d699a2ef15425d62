"""The models that several ranks train, and what each look at a step says of them, joined over nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.shares import Share
from ddpdoctor.evidence.training import (
    OptimizerSetup,
    StateLook,
    StepLook,
    StepSite,
    TensorLook,
    WrapperSetup,
)
from ddpdoctor.facts import strategies
from ddpdoctor_checks.training.wrappers import find_layout, list_data_groups


@dataclass(frozen=True, slots=True)
class Replica:
    """One model over the ranks that should hold the same: a group of its wrapper, or all where nothing wraps it."""

    setup: OptimizerSetup
    model: int
    name: str
    """Its class."""
    ranks: RankSet
    looks: tuple[StepLook, ...]
    """Of these ranks and this model alone, in order."""
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
    setups: dict[int, OptimizerSetup] = {}
    looks: dict[int, dict[int, StepLook]] = {}
    for node in evidence.training:
        for setup in node.optimizers:
            known = setups.get(setup.number)
            setups[setup.number] = setup if known is None else _join_setups(known, setup)
        for look in node.steps:
            steps = looks.setdefault(look.optimizer, {})
            before = steps.get(look.step)
            steps[look.step] = look if before is None else _join_looks(before, look)
    replicas: list[Replica] = []
    groups = list_data_groups(evidence)
    layout = find_layout(evidence)
    by_hand = {g for axis in layout.axes if axis.strategy == strategies.BY_HAND.name for g in axis.groups}
    for number, setup in sorted(setups.items()):
        replicas += _split(setup, [look for _, look in sorted(looks.get(number, {}).items())], groups)
    return [replace(each, kept=True) if each.ranks in by_hand else each for each in replicas]


def _split(setup: OptimizerSetup, looks: Sequence[StepLook], groups: Sequence[RankSet]) -> list[Replica]:
    """Return the models of one optimizer, each over the ranks of its group, or that hold the same pieces of it."""
    if setup.peers:
        return _split_pieces(setup, looks)
    models = {int(model): name for model, name in setup.models.items() if model.lstrip("-").isdigit()}
    others = {*models, *(each.model for look in looks for each in look.tensors)}
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


def _split_pieces(setup: OptimizerSetup, looks: Sequence[StepLook]) -> list[Replica]:
    """Return the models of an optimizer whose tensors are sharded: one for each set of ranks that hold the same."""
    sets = dict.fromkeys(
        [*setup.peers, *(peers for look in looks for tensor in look.tensors for peers in tensor.peers)]
    )
    wrappers = {str(each.number): each for each in setup.wrappers}
    found = []
    for ranks in sets:
        for model, name in setup.models.items() if len(ranks) > 1 else ():
            kept = [
                replace(
                    look,
                    tensors=tuple(each for each in look.tensors if not each.peers or ranks in each.peers),
                )
                for look in looks
            ]
            restricted = _restrict(kept, ranks, int(model), alone=ranks in setup.peers)
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


def _join_setups(one: OptimizerSetup, other: OptimizerSetup) -> OptimizerSetup:
    return replace(
        one,
        ranks=one.ranks.union(other.ranks),
        wrappers=tuple(dict.fromkeys((*one.wrappers, *other.wrappers))),
        uniform=one.uniform and other.uniform and one.models == other.models,
        unfrozen=tuple(dict.fromkeys((*one.unfrozen, *other.unfrozen))),
        steps=_join_shares(one.steps, other.steps),
        sites=_join_sites(one.sites, other.sites),
        alongside=tuple(sorted({*one.alongside, *other.alongside})),
        peers=tuple(dict.fromkeys((*one.peers, *other.peers))),
    )


def _join_sites(one: Sequence[StepSite], other: Sequence[StepSite]) -> tuple[StepSite, ...]:
    joined = {site.frames: site for site in one}
    for site in other:
        known = joined.get(site.frames)
        counts = site.counts if known is None else _join_shares(known.counts, site.counts)
        joined[site.frames] = StepSite(site.frames, counts)
    return tuple(joined.values())


def _join_looks(one: StepLook, other: StepLook) -> StepLook:
    if one.final != other.final:
        return other if one.final else one
    tensors = {(each.model, each.name): each for each in one.tensors}
    for each in other.tensors:
        known = tensors.get((each.model, each.name))
        tensors[each.model, each.name] = each if known is None else _join_tensors(known, each)
    return replace(
        one,
        values=_join_shares(one.values, other.values),
        gradients=_join_shares(one.gradients, other.gradients),
        rates=_join_shares(one.rates, other.rates),
        rated=_join_shares(one.rated, other.rated),
        wrappers=(*one.wrappers, *other.wrappers),
        tensors=tuple(tensors.values()),
        differing=max(
            one.differing,
            other.differing,
            sum(len(each.values) > 1 or len(each.gradients) > 1 for each in tensors.values()),
        ),
        states=_join_states(one.states, other.states),
        joined=one.joined or other.joined,
    )


def _join_states(one: Sequence[StateLook], other: Sequence[StateLook]) -> tuple[StateLook, ...]:
    """Join what nodes saw of the parts of a state; one of which a node names a parameter stays as it is there."""
    joined = {(each.item, each.setting): each for each in one}
    for each in other:
        known = joined.get((each.item, each.setting))
        if known is None or not known.parameter:
            shares = _join_shares(known.values, each.values) if known and not each.parameter else each.values
            joined[each.item, each.setting] = replace(each, values=shares)
    return tuple(joined.values())


def _join_tensors(one: TensorLook, other: TensorLook) -> TensorLook:
    return replace(
        one,
        values=_join_shares(one.values, other.values),
        gradients=_join_shares(one.gradients, other.gradients),
        trainable=one.trainable.union(other.trainable),
        missing=one.missing.union(other.missing),
        reduced=one.reduced.union(other.reduced),
        ignored=one.ignored.union(other.ignored),
        idle=one.idle.union(other.idle),
    )


def _join_shares(one: Sequence[Share], other: Sequence[Share]) -> tuple[Share, ...]:
    joined = {share.digest: share for share in one}
    for share in other:
        known = joined.get(share.digest)
        joined[share.digest] = (
            share if known is None else replace(known, ranks=known.ranks.union(share.ranks))
        )
    return tuple(sorted(joined.values(), key=lambda share: (-len(share.ranks), share.ranks.ranges)))


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
