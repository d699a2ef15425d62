"""The wrappers of a training: which there are, and which ranks train one model with different data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.layout import Layout, join_layouts
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook, WrapperSetup
from ddpdoctor.evidence.training.merging import join_optimizers
from ddpdoctor.facts import strategies


def list_wrappers(evidence: Evidence) -> list[WrapperSetup]:
    """Return the wrappers, once for each group of ranks that has one: groups may share its number."""
    found = (wrapper for node in evidence.training for setup in node.optimizers for wrapper in setup.wrappers)
    return list(dict.fromkeys(found))


def find_wrapper(evidence: Evidence, number: int) -> WrapperSetup | None:
    """Return a wrapper by its number, of the first group that has it."""
    return next((each for each in list_wrappers(evidence) if each.number == number), None)


def find_layout(evidence: Evidence) -> Layout:
    """Return how the ranks of a training share out model and data, over all nodes.

    Without groups that average gradients by hand where `find_mixed` says that these are not of one model's replicas.
    """
    layout = join_layouts(node.layout for node in evidence.training)
    if find_mixed(evidence) is None:
        return layout
    return replace(layout, axes=tuple(a for a in layout.axes if a.strategy != strategies.BY_HAND.name))


@dataclass(frozen=True, slots=True)
class Mixed:
    """Gradients that are averaged over ranks which hold different parts of a model."""

    groups: tuple[RankSet, ...]
    """Groups that average its gradients."""
    replicas: tuple[RankSet, ...]
    """Sets of ranks that held the same before the first step, no two of them in one of these groups."""
    setup: OptimizerSetup
    tensor: str = ""
    """A tensor of the part of the model that this is about, where it is not all."""


def find_mixed(evidence: Evidence) -> Mixed | None:
    """Return the groups over which a program averages gradients although their ranks began with different parameters.

    None where ranks outside of such a group did not begin with the same either: then all may have been made apart.
    """
    layout = join_layouts(node.layout for node in evidence.training)
    groups = [g for axis in layout.axes if axis.strategy == strategies.BY_HAND.name for g in axis.groups]
    for setup, looks in join_optimizers(evidence.training):
        look = next((each for each in looks if each.step == 1), None)
        if look is None or setup.peers or not setup.uniform:
            continue
        replicas = [share.ranks for share in look.values if len(share.ranks) > 1]
        apart = [not any(sum(rank in each for rank in group) > 1 for each in replicas) for group in groups]
        known = all(any(rank in each for each in replicas) for group in groups for rank in group)
        if groups and replicas and all(apart) and known:
            return Mixed(tuple(groups), tuple(replicas), setup)
        part = _find_mixed_part(look, setup)
        if part is not None:
            return part
    return None


def _find_mixed_part(look: StepLook, setup: OptimizerSetup) -> Mixed | None:
    """Compare the ranks whose gradients of one tensor are equal with those whose values are: no two may be in both.

    Only an average makes gradients equal to the last bit: one over ranks that hold different values of the tensor, and
    not over those that hold the same.
    """
    for tensor in look.tensors:
        gradients, values = (
            tuple(share.ranks for share in shares) for shares in (tensor.gradients, tensor.values)
        )
        several = len(gradients) > 1 and len(values) > 1
        if not several or any(len(each) < 2 for each in (*gradients, *values)):
            continue
        if all(sum(rank in value for rank in gradient) <= 1 for gradient in gradients for value in values):
            return Mixed(gradients, values, setup, tensor.name)
    return None


@dataclass(frozen=True, slots=True)
class WrappedShards:
    """A DistributedDataParallel whose group holds ranks that work together on one model."""

    wrapper: WrapperSetup
    peers: tuple[RankSet, ...]
    """Sets of ranks that read the same batches and began with different shards."""
    replicas: tuple[RankSet, ...]
    """Sets of ranks that began with the same."""
    shards: tuple[str, ...]
    """Parameters that are sharded."""
    whole: str
    """One that was equal on all ranks."""


def find_wrapped_shards(evidence: Evidence, together: Sequence[RankSet]) -> WrappedShards | None:
    """Return the first wrapper that averages gradients of different shards.

    Shards are parameters that no two ranks of a set had in common when they were wrapped and that ranks of different
    sets had, while others, drawn at random too, were equal on all ranks: a seed of its own on each rank makes all
    differ.

    Args:
        evidence: of a training.
        together: sets of ranks that were given the same batches.
    """
    layout = join_layouts(node.layout for node in evidence.training)
    known = {group for axis in layout.axes for group in axis.groups}
    for setup, _ in join_optimizers(evidence.training):
        for wrapper in setup.wrappers:
            peers = [each for each in together if each in known and set(each) < set(wrapper.group)]
            covered = sorted(rank for each in peers for rank in each)
            if len(peers) < 2 or covered != sorted(wrapper.group):
                continue
            born = [each for each in setup.born if each.wrapper == wrapper.number]
            if any(sum(len(share.ranks) for share in each.values) != len(covered) for each in born):
                continue
            whole = [each for each in born if len(each.values) == 1]
            apart = [each for each in born if len(each.values) > 1]
            sets = {tuple(sorted((share.ranks for share in each.values), key=min)) for each in apart}
            if not whole or len(sets) != 1:
                continue
            (replicas,) = sets
            if all(len(each) > 1 for each in replicas) and all(
                sum(rank in each for rank in group) == 1 for group in peers for each in replicas
            ):
                names = tuple(each.name for each in apart)
                return WrappedShards(wrapper, tuple(peers), replicas, names, whole[0].name)
    return None


def list_groups(evidence: Evidence, model: int | None = None) -> list[RankSet]:
    """Return the groups of ranks that train one model with different data.

    Those of wrappers; else those that the layout tells of; all ranks where none is smaller. None where ranks work in
    smaller groups and what these are for is not known.

    Args:
        evidence: of a training.
        model: only the groups of this wrapper.
    """
    groups = {
        wrapper.group: None
        for wrapper in list_wrappers(evidence)
        if wrapper.group and model in (None, wrapper.number)
    }
    return list(groups) if groups else list_data_groups(evidence)


def list_data_groups(evidence: Evidence) -> list[RankSet]:
    """Return what `list_groups` does of a model that nothing wraps."""
    everyone = RankSet().union(*(node.ranks for node in evidence.training))
    layout = find_layout(evidence)
    if find_mixed(evidence) is not None or not layout.is_known(everyone):
        return []
    if not layout.axes:
        return [everyone]
    return layout.list_groups(strategies.DATA) or ([] if layout.list_groups(*NOT_DATA) else [everyone])


NOT_DATA = (strategies.TENSOR, strategies.PIPELINE, strategies.EXPERT, strategies.CONTEXT)
"""Roles of ranks that do not train the same part of one model with different data."""


def name_model(wrapper: WrapperSetup | None) -> str:
    """Return the class of a wrapped model as a script names it."""
    return wrapper.model.removeprefix("__main__.") if wrapper is not None else "the model"
