"""How samplers of ranks fit each other, which parts of a data set they read, and what evaluation reads twice."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.sampling import Sampling
from ddpdoctor_checks.training.wrappers import list_groups, list_wrappers

_TORCH = "torch.utils.data.distributed.DistributedSampler"
OVERLAPPING = 0.35
"""Median share of a rank's part that others have too. Orders drawn apart give a half for two ranks, 63 % for many;
parts that are filled up to be equally long share the samples of a few ranks only."""
UNREACHED = 0.02
"""How far all parts together may be from the largest index of any, as a share: nobody may have drawn the last ones."""
FEWEST_SHARED = 20
"""Samples of each part on the mean, below which a share of them says little."""


@dataclass(frozen=True, slots=True)
class Differing:
    """Samplers of one loader that do not fit each other."""

    sampling: Sampling
    what: str
    """seed, epoch, total_size, num_replicas, rank (several are told to be the same), or missing (parts that no rank
    reads)."""
    values: tuple[tuple[str, RankSet], ...]
    certain: bool
    """The sampler is torch's own, whose use of the value is known, and its batches were trained on."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Validation samples of one rank that are in another rank's training set."""

    validation: Sampling
    training: Sampling
    reader: int
    """Rank that validates on them."""
    trainer: int
    """Rank that may train on them."""
    share: float
    """Share of the validation set that is in that training set, as estimated from sketches."""
    ranks: RankSet


@dataclass(frozen=True, slots=True)
class Overlap:
    """Parts of one data set that ranks of a wrapper train on, which were to share it out and overlap."""

    sampling: Sampling
    ranks: RankSet
    samples: int
    """Samples of all parts together."""
    share: float
    """Share of one rank's part that is in those of others, as estimated from sketches."""


@dataclass(frozen=True, slots=True)
class Padded:
    """An evaluation that reads some samples twice."""

    sampling: Sampling
    ranks: RankSet
    samples: int
    padded: int


def find_differing(evidence: Evidence) -> list[Differing]:
    """Return what differs, or does not fit, over the samplers of one group of ranks; one entry for each loader."""
    found: dict[str, Differing] = {}
    for (loader, _), rows in _list_iterations(evidence).items():
        for peers in list_groups(evidence):
            mine = [row for sampling in rows if (row := _restrict(sampling, peers)).ranks]
            differing = _compare(mine) if loader not in found else None
            if differing is not None:
                found[loader] = differing
        missing = _find_missing(evidence, rows) if loader not in found else None
        if missing is not None:
            found[loader] = missing
    return list(found.values())


def _list_iterations(evidence: Evidence) -> dict[tuple[str, int], list[Sampling]]:
    rows: dict[tuple[str, int], list[Sampling]] = {}
    for node in evidence.training:
        for sampling in node.samplings:
            rows.setdefault((sampling.loader, sampling.number), []).append(sampling)
    return dict(sorted(rows.items(), key=lambda item: item[0][1]))


@dataclass(frozen=True, slots=True)
class _Row:
    sampling: Sampling
    ranks: RankSet


def _restrict(sampling: Sampling, peers: RankSet) -> _Row:
    return _Row(sampling, RankSet(rank for rank in sampling.ranks if rank in peers))


def _compare(rows: Sequence[_Row]) -> Differing | None:
    if any(row.sampling.replicas is None for row in rows) or sum(len(row.ranks) for row in rows) < 2:
        return None
    if all(row.sampling.replicas == 1 for row in rows):
        return None  # each rank draws from the whole, as it was told to
    shuffled = all(row.sampling.shuffle for row in rows)
    looks: list[tuple[str, Callable[[Sampling], object]]] = [
        ("num_replicas", lambda each: each.replicas),
        ("total_size", lambda each: each.total),
    ]
    apart = not _list_twice(rows)
    if shuffled and apart:
        looks += [("seed", lambda each: each.seed), ("epoch", lambda each: each.epoch)]
    for what, read in looks:
        values = _group((read(row.sampling), row.ranks) for row in rows)
        if len(values) > 1 and None not in values:
            told = tuple((str(value), ranks) for value, ranks in values.items())
            return Differing(rows[0].sampling, what, told, _is_certain(rows))
    same_order = len({(row.sampling.seed, row.sampling.epoch) for row in rows}) == 1
    if not apart and same_order and not _reads_all(rows):
        told = tuple((str(shard), ranks) for shard, ranks in _list_twice(rows).items())
        return Differing(rows[0].sampling, "rank", told, _is_certain(rows))
    return None


def _group(pairs: Iterable[tuple[object, RankSet]]) -> dict[object, RankSet]:
    groups: dict[object, RankSet] = {}
    for value, ranks in pairs:
        groups[value] = groups.get(value, RankSet()).union(ranks)
    return groups


def _list_twice(rows: Iterable[_Row]) -> dict[int, RankSet]:
    """Return the numbers that samplers of several ranks were told to be."""
    holders: dict[int, list[int]] = {}
    for row in rows:
        for rank, shard in row.sampling.shards.items():
            if rank.isdecimal() and int(rank) in row.ranks:
                holders.setdefault(shard, []).append(int(rank))
    return {shard: RankSet(ranks) for shard, ranks in holders.items() if len(ranks) > 1}


def _reads_all(rows: Sequence[_Row]) -> bool:
    """Whether all shards are read, each by as many ranks: the samplers fit each other, and were made for fewer ranks.

    That these read the same batches is DAT001, unless they compute one model together.
    """
    twice = _list_twice(rows)
    count = rows[0].sampling.replicas
    return len(twice) == count and len({len(ranks) for ranks in twice.values()}) == 1


def _find_missing(evidence: Evidence, rows: Sequence[Sampling]) -> Differing | None:
    """Return the parts of a data set that no rank of the job reads."""
    world = max((process.world_size or 0 for process in evidence.processes), default=0)
    ranks = RankSet().union(*(row.ranks for row in rows))
    replicas = {row.replicas for row in rows}
    shards = {shard for row in rows for shard in row.shards.values()}
    count = next(iter(replicas))
    if len(replicas) != 1 or count is None or len(ranks) != world:
        return None
    if count <= len(shards) or len(shards) != len(ranks):
        return None
    certain = _is_certain([_Row(row, row.ranks) for row in rows])
    return Differing(rows[0], "missing", ((str(count), ranks),), certain)


def _is_certain(rows: Iterable[_Row]) -> bool:
    return all(row.sampling.sampler == _TORCH and row.sampling.trained for row in rows)


def find_uneven(evidence: Evidence) -> list[tuple[Sampling, dict[int, int]]]:
    """Return the loaders of a training that give ranks of one wrapper different numbers of batches, with these."""
    found: dict[str, tuple[Sampling, dict[int, int]]] = {}
    for (loader, _), rows in _list_iterations(evidence).items():
        for peers in list_groups(evidence) if list_wrappers(evidence) else ():
            mine = [row for sampling in rows if (row := _restrict(sampling, peers)).ranks]
            if loader in found or not mine or any(not r.sampling.trained or r.sampling.joining for r in mine):
                continue
            counts = {rank: row.sampling.length for row in mine for rank in row.ranks}
            known = {rank: count for rank, count in counts.items() if count is not None}
            if len(known) == len(counts) == len(peers) and len(set(known.values())) > 1:
                found[loader] = mine[0].sampling, known
    return list(found.values())


def find_leaks(evidence: Evidence) -> list[Leak]:
    """Return where ranks of one wrapper validate on what another one trains on; the largest of each pair of loaders."""
    if not list_wrappers(evidence):
        return []
    found = []
    for peers in list_groups(evidence):
        trained = _first(evidence, peers, trained=True)
        validated = _first(evidence, peers, trained=False)
        leak = _meet(trained, validated)
        if leak is not None:
            found.append(leak)
    return found


def _first(evidence: Evidence, peers: RankSet, *, trained: bool) -> dict[int, Sampling]:
    """Return by rank the first iteration that reads an explicit part of a data set."""
    chosen: dict[int, Sampling] = {}
    for (_, _), rows in _list_iterations(evidence).items():
        for row in rows:
            for rank in row.ranks:
                if row.split and row.origin is not None and rank in peers and row.trained == trained:
                    chosen.setdefault(rank, row)
    return chosen


def _meet(trained: Mapping[int, Sampling], validated: Mapping[int, Sampling]) -> Leak | None:
    origins = {row.origin for row in (*trained.values(), *validated.values())}
    if len(origins) != 1:
        return None  # data sets of their own, or not known to be one
    if any(estimate_overlap(validated[rank], trained[rank]) for rank in validated if rank in trained):
        return None  # what is evaluated is a part of what is trained on, by intent
    best: Leak | None = None
    ranks = set()
    for reader, validation in validated.items():
        for trainer, training in trained.items():
            share = estimate_overlap(validation, training) if reader != trainer else 0.0
            if share:
                ranks |= {reader, trainer}
                if best is None or share > best.share:
                    best = Leak(validation, training, reader, trainer, share, RankSet())
    if best is None:
        return None
    return Leak(best.validation, best.training, best.reader, best.trainer, best.share, RankSet(ranks))


def find_overlaps(evidence: Evidence) -> list[Overlap]:
    """Return the parts that ranks of one wrapper train on, as many in all as the data set has, that overlap.

    Not where ranks have the same part, and where another part of that data set is for evaluation.
    """
    if not list_wrappers(evidence):
        return []
    found = []
    for peers in list_groups(evidence):
        parts = _first(evidence, peers, trained=True)
        origins = {row.origin for row in parts.values()}
        if len(parts) < 2 or len(parts) != len(peers) or len(origins) != 1:
            continue
        if any(row.split_reach is None or row.replicas is not None for row in parts.values()):
            continue
        if len({row.split for row in parts.values()}) < len(parts):
            continue
        if origins.intersection(row.origin for row in _first(evidence, peers, trained=False).values()):
            continue
        samples = sum(row.split_size or 0 for row in parts.values())
        reach = max(row.split_reach or 0 for row in parts.values())
        if samples < FEWEST_SHARED * len(parts) or abs(samples - reach) > max(
            len(parts), UNREACHED * samples
        ):
            continue
        share = statistics.median(_estimate_shared(list(parts.values())))
        if share >= OVERLAPPING:
            found.append(Overlap(parts[min(parts)], RankSet(parts), samples, share))
    return found


def _estimate_shared(parts: Sequence[Sampling]) -> list[float]:
    """Return of each part the share that is in any other, by sketches."""
    bound = _find_bound(parts)
    kept = [{value for value in part.split if bound is None or value <= bound} for part in parts]
    counts = Counter(value for values in kept for value in values)
    return [sum(counts[value] > 1 for value in values) / len(values) for values in kept if values] or [0.0]


def _find_bound(parts: Iterable[Sampling]) -> int | None:
    """Return the hash up to which all sketches hold all of their sets; None where they hold them whole."""
    cut = (max(each.split) for each in parts if each.split and len(each.split) < (each.split_size or 0))
    return min(cut, default=None)


def estimate_overlap(part: Sampling, whole: Sampling) -> float:
    """Return the share of one set that is in another, by their smallest hashes: Broder's bottom-k sketches."""
    bound = _find_bound((part, whole))
    mine = {value for value in part.split if bound is None or value <= bound}
    theirs = {value for value in whole.split if bound is None or value <= bound}
    return len(mine & theirs) / len(mine) if mine else 0.0


def find_padded(evidence: Evidence) -> list[Padded]:
    """Return the evaluations that read samples twice, the first iteration of each loader."""
    found: dict[str, Padded] = {}
    for (loader, _), rows in _list_iterations(evidence).items():
        if loader in found or any(row.trained or row.padded is None for row in rows):
            continue
        padded = sum(row.padded or 0 for row in rows)
        if padded:
            ranks = RankSet().union(*(row.ranks for row in rows))
            found[loader] = Padded(rows[0], ranks, sum(row.samples for row in rows), padded)
    return list(found.values())
