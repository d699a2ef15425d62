"""What made replicas differ, where that was seen: a load, a seed, experts that are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.loads import LateLoad
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.training.replicas.apart import Divergence
from ddpdoctor_checks.training.seeding import find_seeded_apart


def add_cause(evidence: Evidence, divergence: Divergence) -> Divergence:
    """Add what made ranks differ, where that was seen."""
    setup, first = divergence.replica.setup, divergence.first
    if first is None or not _is_unequal_start(divergence):
        return replace(divergence, load=_find_load(evidence, divergence))
    if setup.all_to_all and setup.reduced and 0 < first.differing < setup.parameters:
        return replace(divergence, code="COL013", confidence="medium")
    load = _find_load(evidence, divergence)
    seeded = find_seeded_apart(evidence, first.values) if load is None else None
    return replace(divergence, load=load, seeded=seeded)


def _is_unequal_start(divergence: Divergence) -> bool:
    """Whether replicas that nothing wraps began with different parameters."""
    return (
        divergence.code == "NUM001"
        and divergence.at_start
        and not divergence.shared
        and divergence.replica.wrapper is None
    )


def _find_seed(divergence: Divergence) -> Frame | None:
    return divergence.seeded.line if divergence.seeded is not None else None


def join_groups(divergences: Sequence[Divergence]) -> list[Divergence]:
    """Join what several groups of replicas of one model have in common: one cause, whichever groups there are."""
    joined: list[Divergence] = []
    for divergence in divergences:
        for place, known in enumerate(joined):
            began = _is_unequal_start(known) and _is_unequal_start(divergence)
            if (
                (began or (known.unreduced_shards and divergence.unreduced_shards))
                and known.replica.setup.number == divergence.replica.setup.number
                and known.replica.model == divergence.replica.model
                and _find_seed(known) == _find_seed(divergence)
            ):
                ranks, others = (
                    known.ranks.union(divergence.ranks),
                    (*known.other_groups, divergence.replica.ranks),
                )
                joined[place] = replace(known, ranks=ranks, other_groups=others)
                break
        else:
            joined.append(divergence)
    return joined


def _find_load(evidence: Evidence, divergence: Divergence) -> LateLoad | None:
    """Return the first load that explains it: ranks did not all make it, or not all with the same values.

    One into a model must lie before the look at which replicas differ: what differs already is also saved and loaded.
    """
    replica = divergence.replica
    if divergence.code == "NUM006" and divergence.state is not None:
        number, target = 0, replica.setup.kind
    elif (
        divergence.code == "NUM001"
        and replica.wrapper
        and (divergence.gradients is None or divergence.at_start)
    ):
        number, target = replica.wrapper.number, ""
    else:
        return None
    joined: dict[tuple[str, Frame | None], list[LateLoad]] = {}
    for node in evidence.training:
        for each in node.late_loads:
            if each.wrapper == number and target in ("", each.target):
                joined.setdefault((each.target, user_line(each.frames)), []).append(each)
    for rows in joined.values():
        ranks = RankSet(rank for row in rows for rank in row.ranks if rank in replica.ranks)
        apart = next((row.apart for row in rows if row.apart), ())
        before = min(row.forwards for row in rows) < _count_forwards(divergence) if number else True
        if before and ranks and (ranks != replica.ranks or apart):
            return replace(rows[0], ranks=ranks, apart=apart)
    return None


def _count_forwards(divergence: Divergence) -> int:
    """Return how many forwards a wrapper had made at the look at which replicas differ, at most."""
    first, wrapper = divergence.first, divergence.replica.wrapper
    if first is None or wrapper is None:
        return 0
    made = 0
    for look in divergence.replica.looks:
        if look.step <= first.step:
            ways = [way for way in look.wrappers if way.number == wrapper.number and way.synced >= 0]
            made += max((way.synced + way.alone for way in ways), default=0)
    return made + first.final
