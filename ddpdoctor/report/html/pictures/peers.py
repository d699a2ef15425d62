"""Which ranks may be compared in a picture: those that hold the same pieces of a model, or must read other samples."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.layout import join_layouts
from ddpdoctor.facts import strategies


def find_replicas(evidence: Evidence, optimizer: int) -> list[RankSet]:
    """Return the sets of ranks whose parameters of one optimizer should be equal.

    Of sharded tensors those that hold the same pieces; else those that a wrapper reduces over, or that share data; else
    all ranks that have the optimizer.
    """
    layout = join_layouts(node.layout for node in evidence.training)
    setups = [each for node in evidence.training for each in node.optimizers if each.number == optimizer]
    ranks = RankSet().union(*(setup.ranks for setup in setups))
    peers = [part for setup in setups for each in setup.peers for part in layout.part(each)]
    wrapped = [each.group for setup in setups for each in setup.wrappers if each.group]
    found = peers or wrapped or layout.list_groups(strategies.DATA) or [ranks]
    return _cut(found, ranks)


def find_readers(evidence: Evidence) -> list[RankSet]:
    """Return the sets of ranks that must read samples of their own; tensor-parallel peers read the same ones."""
    layout = join_layouts(node.layout for node in evidence.training)
    ranks = RankSet().union(*(node.ranks for node in evidence.training))
    return _cut(layout.list_groups(strategies.DATA) or [ranks], ranks)


def _cut(sets: Iterable[RankSet], ranks: RankSet) -> list[RankSet]:
    own = (RankSet(rank for rank in each if rank in ranks) for each in sets)
    return list(dict.fromkeys(each for each in own if len(each) > 1))
