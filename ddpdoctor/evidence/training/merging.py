"""What several nodes saw of one training, joined: each wrote down its own ranks, and checks compare all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpdoctor.evidence.stages import Frame
from ddpdoctor.evidence.training.fingerprints import (
    Born,
    OptimizerSetup,
    StateLook,
    StepLook,
    StepSite,
    TensorLook,
    Training,
)
from ddpdoctor.evidence.training.numerics import BufferLook, CompanionLook
from ddpdoctor.evidence.training.seedings import Seeding
from ddpdoctor.evidence.training.shares import Share


def join_optimizers(nodes: Iterable[Training]) -> list[tuple[OptimizerSetup, list[StepLook]]]:
    """Return the optimizers by their numbers, each with the looks at its steps in order."""
    setups: dict[int, OptimizerSetup] = {}
    looks: dict[int, dict[int, StepLook]] = {}
    for node in nodes:
        for setup in node.optimizers:
            known = setups.get(setup.number)
            setups[setup.number] = setup if known is None else _join_setups(known, setup)
        for look in node.steps:
            steps = looks.setdefault(look.optimizer, {})
            before = steps.get(look.step)
            steps[look.step] = look if before is None else _join_looks(before, look)
    return [
        (setup, [look for _, look in sorted(looks.get(number, {}).items())])
        for number, setup in sorted(setups.items())
    ]


def join_evaluations(nodes: Iterable[Training]) -> list[BufferLook]:
    """Return the looks at the buffers of evaluations, in order."""
    joined: dict[tuple[int, int, int, str], BufferLook] = {}
    for node in nodes:
        for look in node.numerics.evaluations:
            key = look.wrapper, look.evaluation, look.step, look.door
            known = joined.get(key)
            joined[key] = look if known is None else _join_evaluations(known, look)
    return [look for _, look in sorted(joined.items())]


def join_companions(nodes: Iterable[Training]) -> list[CompanionLook]:
    """Return the looks at models that run beside the trained one, by model, in order."""
    joined: dict[tuple[str, int, int, int, int], CompanionLook] = {}
    for node in nodes:
        for look in node.numerics.companions:
            key = look.model, look.number, look.parameters, look.optimizer, look.step
            known = joined.get(key)
            joined[key] = (
                look if known is None else replace(known, values=_join_shares(known.values, look.values))
            )
    return [look for _, look in sorted(joined.items())]


def join_seedings(nodes: Iterable[Training]) -> list[Seeding]:
    """Return the lines that seeded torch, in the order in which a rank came to them."""
    joined: dict[tuple[Frame, ...], Seeding] = {}
    for node in nodes:
        for each in node.seedings:
            known = joined.get(each.frames)
            joined[each.frames] = (
                each
                if known is None
                else replace(
                    known,
                    values=_join_shares(known.values, each.values),
                    trained=known.trained or each.trained,
                )
            )
    return list(joined.values())


def _join_evaluations(one: BufferLook, other: BufferLook) -> BufferLook:
    names = [name for name in one.buffers if name in other.buffers]
    return replace(
        one,
        ranks=one.ranks.union(other.ranks),
        buffers={name: (*one.buffers[name], *other.buffers[name]) for name in names},
    )


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
        weighed=one.weighed or other.weighed,
        scaled=one.scaled or other.scaled,
        reduced=one.reduced or other.reduced,
        replaced=one.replaced or other.replaced,
        all_to_all=one.all_to_all or other.all_to_all,
        averagings=min(one.averagings, other.averagings),
        averaging=one.averaging or other.averaging,
        lowered=_join_shares(one.lowered, other.lowered),
        lowered_at=one.lowered_at or other.lowered_at,
        born=_join_born(one.born, other.born),
    )


def _join_born(one: Sequence[Born], other: Sequence[Born]) -> tuple[Born, ...]:
    joined = {(each.wrapper, each.name): each for each in one}
    for each in other:
        known = joined.get((each.wrapper, each.name))
        values = each.values if known is None else _join_shares(known.values, each.values)
        joined[each.wrapper, each.name] = replace(each, values=values)
    return tuple(joined.values())


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
    tensors = _join_lists(one.tensors, other.tensors)
    return replace(
        one,
        values=_join_shares(one.values, other.values),
        gradients=_join_shares(one.gradients, other.gradients),
        rates=_join_shares(one.rates, other.rates),
        rated=_join_shares(one.rated, other.rated),
        wrappers=(*one.wrappers, *other.wrappers),
        others=_join_shares(one.others, other.others),
        tensors=tensors,
        buffers=_join_lists(one.buffers, other.buffers),
        differing=max(
            one.differing,
            other.differing,
            sum(len(each.values) > 1 or len(each.gradients) > 1 for each in tensors),
        ),
        states=_join_states(one.states, other.states),
        joined=one.joined or other.joined,
        weights=(*one.weights, *other.weights),
        scaled=(*one.scaled, *other.scaled),
        reduced=(*one.reduced, *other.reduced),
        unsynced=one.unsynced.union(other.unsynced),
    )


def _join_lists(one: Sequence[TensorLook], other: Sequence[TensorLook]) -> tuple[TensorLook, ...]:
    tensors = {(each.model, each.name): each for each in one}
    for each in other:
        known = tensors.get((each.model, each.name))
        tensors[each.model, each.name] = each if known is None else _join_tensors(known, each)
    return tuple(tensors.values())


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
