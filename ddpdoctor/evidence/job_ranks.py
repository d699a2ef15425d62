"""The ranks of a job, from what its processes told of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence.facts import RankFacts
from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor.evidence.ranks import RankSet


def find_seen(processes: Sequence[ProcessRecord]) -> tuple[RankSet, int] | None:
    """Return the ranks that were seen of the world that they joined, and its size; None where no rank joined one.

    Args:
        processes: of a job; of several attempts the last counts.
    """
    joined = [
        each
        for each in processes
        if each.is_rank
        and each.rank is not None
        and each.world_size
        and any(milestone.name == "init" for milestone in each.milestones)
    ]
    last = max((each.attempt for each in joined), default=0)
    size = max((each.world_size or 0 for each in joined if each.attempt == last), default=0)
    ranks = RankSet(
        each.rank
        for each in joined
        if each.rank is not None and (each.attempt, each.world_size) == (last, size)
    )
    return (ranks, size) if ranks else None


def describe_ranks(processes: Iterable[ProcessRecord]) -> tuple[RankFacts, ...]:
    """Return a job's ranks as the checks of launches know them, those of the last attempt, in order of rank.

    Environment and version of torch are what each process wrote down when it started; a rank without an
    environment is left out, for nothing can be said of it.
    """
    ranks = [each for each in processes if each.role == "rank" and each.rank is not None and each.variables]
    last = max((each.attempt for each in ranks), default=0)
    found = [
        RankFacts(
            rank=each.rank or 0,
            local_rank=each.local_rank or 0,
            node=each.node,
            host=each.host,
            pid=each.pid,
            world_size=each.world_size or 0,
            variables=each.variables,
            versions={
                name: version
                for name, version in (("torch", each.torch), ("python", each.python))
                if version is not None
            },
        )
        for each in ranks
        if each.attempt == last
    ]
    return tuple(sorted(found, key=lambda facts: (facts.rank, facts.node, facts.pid)))
