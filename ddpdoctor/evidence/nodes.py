"""Evidence of several nodes of one job in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ddpdoctor.evidence.bundle import Evidence, merge_evidence
from ddpdoctor.evidence.facts import Launch

BY_NODE = (
    "processes", "exceptions", "crashes", "wrappers", "texts", "memory", "ranks", "standstills", "training",
)  # fmt: skip
"""Kinds of evidence whose rows say of which node they are: those that travel."""


def join_evidence(parts: Sequence[Evidence]) -> Evidence:
    """Join evidence of several nodes of one job; what a node wrote itself goes before what another has of it.

    Args:
        parts: at least one.
    """
    owned = [{member.node for member in part.members if member.own} for part in parts]
    kept = []
    for part, own in zip(parts, owned, strict=True):
        foreign = set().union(*owned) - own
        changes: dict[str, Any] = {
            kind: tuple(row for row in getattr(part, kind) if row.node not in foreign) for kind in BY_NODE
        }
        kept.append(dataclasses.replace(part, **changes) if own else part)
    whole = merge_evidence(kept)
    # A node that left took part in earlier attempts only: its ranks are not those of the last.
    attempts = {(each.node, each.pid): each.attempt for each in whole.processes}
    last = max((attempts.get((rank.node, rank.pid), 0) for rank in whole.ranks), default=0)
    ranks = tuple(rank for rank in whole.ranks if attempts.get((rank.node, rank.pid), last) == last)
    return dataclasses.replace(whole, ranks=ranks)


def describe_launch(evidence: Evidence, lost: Sequence[str] = ()) -> Evidence:
    """Return the evidence with its launch as all nodes make it up."""
    ranks = [each for each in evidence.processes if each.role == "rank" and each.rank is not None]
    sizes = [each.world_size for each in ranks if each.world_size]
    by_node = [len(member.ranks) for member in evidence.members]
    launch: Launch = dataclasses.replace(
        evidence.launch,
        nnodes=max(evidence.launch.nnodes, len(evidence.members)),
        nproc=max([*by_node, 1]),
        world_size=max([evidence.launch.world_size, *sizes, sum(by_node)]),
        node_rank=next((each.node for each in evidence.members if each.own), None),
    )
    job = evidence.job
    if lost and job:
        job = (dataclasses.replace(job[0], lost=(*job[0].lost, *lost)), *job[1:])
    return dataclasses.replace(evidence, launch=launch, job=job)
