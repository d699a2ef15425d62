"""What ranks were given: the same batches on several of them, the same order in two epochs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import BatchLook, EpochLook, LoaderSetup
from ddpdoctor.evidence.training.sampling import Sampling
from ddpdoctor.facts import strategies
from ddpdoctor_checks.training.replicas.divergence import is_moved
from ddpdoctor_checks.training.replicas.models import list_replicas
from ddpdoctor_checks.training.wrappers import find_layout, list_groups, list_wrappers

FEWEST_BATCHES = 2
"""Different batches in a row that two ranks must have alike."""
STREAM = "torch.utils.data.dataloader._InfiniteConstantSampler"
"""What stands for the sampler of an IterableDataset."""
FEWEST_INDICES = 8
"""Indices in the same order by chance: one in 40,000 for eight."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Ranks that were given the same batches."""

    ranks: RankSet
    model: int
    loader: LoaderSetup | None
    batches: int
    """How many in a row."""
    epoch: int
    shape: tuple[int, ...]
    frames: tuple[Frame, ...]
    """Where the model was called."""
    copies: int = 1
    """How often each batch comes, one after the other: workers of a stream that is not split give the same."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A loader that gives every rank all of the data set."""

    sampling: Sampling
    ranks: RankSet
    size: int


@dataclass(frozen=True, slots=True)
class SameOrder:
    """A loader that gives the same order in two epochs that follow each other."""

    loader: LoaderSetup
    ranks: RankSet
    epoch: int
    """The second of the two epochs."""
    compared: int
    first: tuple[int, ...]


def find_repeated(evidence: Evidence) -> list[Repeated]:
    """Return which ranks of one replica were given the same batches, one entry for each model and loader."""
    groups: dict[tuple[int, str, int], dict[int, list[BatchLook]]] = {}
    for node in evidence.training:
        for look in node.batches:
            groups.setdefault((look.model, look.loader, look.epoch), {}).setdefault(look.index, []).append(
                look
            )
    found: dict[tuple[int, str, RankSet], Repeated] = {}
    # A wrapper says of its own model alone that its ranks are replicas.
    sharded = any(
        axis.role == strategies.DATA and axis.strategy != strategies.DDP.name
        for axis in find_layout(evidence).axes
    )
    single = {
        model for model in {key[0] for key in groups} if model > 0 or sharded or _is_one(evidence, model)
    }
    for (model, loader, epoch), looks in sorted(groups.items()):
        if model not in single:
            continue
        for peers in list_groups(evidence, model):
            setup = find_loader(evidence, loader)
            copies = setup.workers if setup is not None and setup.sampler == STREAM else 1
            for ranks in _share_all(looks, peers, copies):
                first = looks[min(looks)][0]
                # Where it gave each rank its own, what is equal comes from somewhere else.
                source = "" if _is_apart(evidence, loader, epoch, ranks) else loader
                found.setdefault(
                    (max(model, 0), source, ranks),  # parts of a sharded model are given the same
                    Repeated(
                        ranks,
                        model,
                        find_loader(evidence, source),
                        len(looks),
                        epoch,
                        first.shape,
                        first.frames,
                        _count_copies(looks),
                    ),
                )
    return list(found.values())


def _is_one(evidence: Evidence, model: int) -> bool:
    """Whether a model that nothing wraps is known to be kept equal by what its ranks send each other.

    Parts of a model read the same, and so does a model that each rank trains for itself, to compare another one with.
    """
    return any(
        each.model == model
        and each.setup.uniform
        and is_moved(each, "carried")
        and any(each.agrees(look) for look in each.looks)
        and all(len(look.values) == 1 for look in each.looks)
        for each in list_replicas(evidence)
    )


def _is_apart(evidence: Evidence, loader: str, epoch: int, ranks: RankSet) -> bool:
    """Whether a loader's sampler gave ranks different indices."""
    epochs = [look for node in evidence.training for look in node.epochs if look.loader == loader]
    digests = {
        look.digest
        for look in epochs
        if look.number == epoch and look.compared and any(rank in ranks for rank in look.ranks)
    }
    return len(digests) > 1


def _share_all(looks: dict[int, list[BatchLook]], peers: RankSet, copies: int) -> list[RankSet]:
    """Return sets of ranks whose batches are equal at every index, and are not one batch over and over.

    Each of them may come as often in a row as there are workers that read one stream, ``copies``.
    """
    digests: dict[int, list[str]] = {}
    for index in sorted(looks):
        for look in looks[index]:
            for share in look.batches:
                for rank in share.ranks:
                    if rank in peers:
                        digests.setdefault(rank, []).append(share.digest)
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, row in digests.items():
        runs = [len(list(run)) for _, run in itertools.groupby(row)]
        if (
            len(row) == len(looks)
            and len(set(row)) == len(runs) >= FEWEST_BATCHES
            and max(runs) <= max(1, copies)
        ):
            groups.setdefault(tuple(row), []).append(rank)
    return [RankSet(ranks) for ranks in groups.values() if len(ranks) > 1]


def _count_copies(looks: dict[int, list[BatchLook]]) -> int:
    """Return how often the first batch comes in a row."""
    row = [[share.digest for look in looks[index] for share in look.batches] for index in sorted(looks)]
    return len(next(list(run) for _, run in itertools.groupby(row)))


def find_whole(evidence: Evidence) -> list[Whole]:
    """Return the loaders that give each rank of one wrapper the whole data set, in a random order of its own.

    Only where the data set holds the same on these ranks, as far as its names tell, and an iteration gave all of it.
    """
    found: dict[str, Whole] = {}
    wrapped = {wrapper.number for wrapper in list_wrappers(evidence)}
    given = [look for node in evidence.training for look in node.batches]
    apart = {look.loader for look in given} - {look.loader for look in given if look.model in wrapped}
    groups = [peers for number in sorted(wrapped) for peers in list_groups(evidence, number)]
    rows: dict[tuple[str, int, str, int], list[Sampling]] = {}
    for node in evidence.training:
        for row in node.samplings:
            if row.trained and row.whole and row.origin is not None and (row.length or 0) > 1:
                rows.setdefault((row.loader, row.number, row.origin, row.whole), []).append(row)
    for (loader, _, _, size), same in sorted(rows.items()):
        ranks = RankSet().union(*(row.ranks for row in same))
        if loader in found or loader in apart or sum(row.samples for row in same) < size * len(ranks):
            continue
        for peers in groups:
            both = RankSet(rank for rank in ranks if rank in peers)
            if len(both) > 1 and len(both) == len(peers):
                found[loader] = Whole(same[0], both, size)
    return list(found.values())


def find_loader(evidence: Evidence, name: str) -> LoaderSetup | None:
    """Return how a loader was made, by its name."""
    loaders = (loader for node in evidence.training for loader in node.loaders)
    return next((loader for loader in loaders if loader.loader == name), None)


def find_same_order(evidence: Evidence) -> list[SameOrder]:
    """Return the loaders that shuffle, and give the same order again in the next epoch, in training."""
    rows: dict[str, dict[int, dict[int, EpochLook]]] = {}
    for node in evidence.training:
        for look in node.epochs:
            for rank in look.ranks:
                rows.setdefault(look.loader, {}).setdefault(rank, {})[look.number] = look
    found = []
    for name, ranks in sorted(rows.items()):
        loader = find_loader(evidence, name)
        if loader is None:
            continue
        trained = {rank: _list_trained(epochs) for rank, epochs in ranks.items()}
        same = {rank: again for rank, epochs in trained.items() if (again := _repeats(epochs)) is not None}
        moved = any(_moves(epochs) for epochs in trained.values())
        if same and not moved:
            first = same[min(same)]
            found.append(SameOrder(loader, RankSet(same), first.number, first.compared, first.first))
    return found


def _list_trained(epochs: dict[int, EpochLook]) -> list[list[EpochLook]]:
    """Return the epochs in training, in runs: validation may go through the same loop, others may be unknown."""
    runs: list[list[EpochLook]] = [[]]
    last = 0
    for number, look in sorted(epochs.items()):
        if number != last + 1 and runs[-1]:
            runs.append([])
        last = number
        if look.steps:
            runs[-1].append(look)
    return runs


def _repeats(runs: Sequence[Sequence[EpochLook]]) -> EpochLook | None:
    """Return the first epoch in training whose order is that of the one before."""
    pairs = (pair for run in runs for pair in itertools.pairwise(run))
    return next((look for before, look in pairs if _alike(before, look)), None)


def _alike(one: EpochLook, other: EpochLook) -> bool:
    if one.ascending or one.batches < 2:  # one batch has no order
        return False
    shared = min(one.compared, other.compared)
    return one.digest == other.digest and one.compared == other.compared and shared >= FEWEST_INDICES


def _moves(runs: Sequence[Sequence[EpochLook]]) -> bool:
    """Whether the order changed between any two epochs: then somebody takes care of it."""
    digests = {look.digest for run in runs for look in run if look.compared >= FEWEST_INDICES}
    return len(digests) > 1
