"""What made replicas differ, where that was seen: a load, a seed, experts that are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.loads import LateLoad
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.training.replicas.apart import Parting
from ddpdoctor_checks.training.seeding import find_seeded_apart


def add_cause(evidence: Evidence, parting: Parting) -> Parting:
    """Add what made ranks differ, where that was seen."""
    setup, first = parting.replica.setup, parting.first
    if first is None or not _is_unequal_start(parting):
        return replace(parting, load=_find_load(evidence, parting))
    if setup.all_to_all and setup.reduced and 0 < first.differing < setup.parameters:
        return replace(parting, code="COL013", confidence="medium")
    load = _find_load(evidence, parting)
    seeded = find_seeded_apart(evidence, first.values) if load is None else None
    return replace(parting, load=load, seeded=seeded)


def _is_unequal_start(parting: Parting) -> bool:
    """Whether replicas that nothing wraps began with different parameters."""
    return (
        parting.code == "NUM001"
        and parting.at_start
        and not parting.shared
        and parting.replica.wrapper is None
    )


def _find_seed(parting: Parting) -> Frame | None:
    return parting.seeded.line if parting.seeded is not None else None


def join_groups(partings: Sequence[Parting]) -> list[Parting]:
    """Join what several groups of replicas of one model have in common: one cause, whichever groups there are."""
    joined: list[Parting] = []
    for parting in partings:
        for place, known in enumerate(joined):
            began = _is_unequal_start(known) and _is_unequal_start(parting)
            if (
                (began or (known.unreduced_shards and parting.unreduced_shards))
                and known.replica.setup.number == parting.replica.setup.number
                and known.replica.model == parting.replica.model
                and _find_seed(known) == _find_seed(parting)
            ):
                ranks, others = known.ranks.union(parting.ranks), (*known.other_groups, parting.replica.ranks)
                joined[place] = replace(known, ranks=ranks, other_groups=others)
                break
        else:
            joined.append(parting)
    return joined


def _find_load(evidence: Evidence, parting: Parting) -> LateLoad | None:
    """Return the first load that explains it: ranks did not all make it, or not all with the same values.

    One into a model must lie before the look at which replicas differ: what differs already is also saved and loaded.
    """
    replica = parting.replica
    if parting.code == "NUM006" and parting.state is not None:
        number, target = 0, replica.setup.kind
    elif parting.code == "NUM001" and replica.wrapper and (parting.gradients is None or parting.at_start):
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
        before = min(row.forwards for row in rows) < _count_forwards(parting) if number else True
        if before and ranks and (ranks != replica.ranks or apart):
            return replace(rows[0], ranks=ranks, apart=apart)
    return None


def _count_forwards(parting: Parting) -> int:
    """Return how many forwards a wrapper had made at the look at which replicas differ, at most."""
    first, wrapper = parting.first, parting.replica.wrapper
    if first is None or wrapper is None:
        return 0
    made = 0
    for look in parting.replica.looks:
        if look.step <= first.step:
            ways = [way for way in look.wrappers if way.number == wrapper.number and way.synced >= 0]
            made += max((way.synced + way.alone for way in ways), default=0)
    return made + first.final
