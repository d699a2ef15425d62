"""DAT004, DAT005 and DAT007: samplers that do not fit each other, splits that differ, evaluation that counts twice."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.sampling import Sampling
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, Where, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, describe_counts, join_words, name_set
from ddpdoctor_checks.job.blame.judging import has_failed
from ddpdoctor_checks.job.hangs.uneven_batches import EVEN, list_batches
from ddpdoctor_checks.training.data.samplers import (
    Differing,
    Leak,
    Overlap,
    Padded,
    find_differing,
    find_leaks,
    find_overlaps,
    find_padded,
    find_uneven,
)

LITTLE = 0.05
"""Share of samples that count twice, below which that is advice."""
PLAIN = 0.05
"""Share of a validation set that another rank trains on, from which on an estimate by sketches is sure of it."""


@check("DAT004", family="training", needs=TRAINING, id="training.splits", required=False, commands=JOB)
def find_split_differs(evidence: Evidence) -> Iterable[Finding]:
    """What one rank validates on is in the training set of another."""
    if not any(sampling.split for node in evidence.training for sampling in node.samplings):
        raise NotApplicable("no loader that reads an explicit subset of a dataset was seen")
    for leak in find_leaks(evidence):
        yield _tell_leak(leak)


def _tell_leak(leak: Leak) -> Finding:
    validation, training = leak.validation, leak.training
    share = f"{leak.share:.0%}" if leak.share >= 0.01 else "some"
    return Finding(
        message=(
            f"{capitalise(name_set(leak.ranks))} have split the dataset differently: about {share} of what "
            f"rank {leak.reader} validates on{_place(validation)} is in the subset that rank {leak.trainer} "
            f"trains on{_place(training)}."
        ),
        ranks=leak.ranks,
        where=_wheres((validation, "culprit"), (training, "caller")),
        evidence=(
            EvidenceItem("validation", f"reads {count_of(validation.split_size or 0, 'sample')} of a "
                         f"{validation.dataset}", validation.ranks),
            EvidenceItem("training", f"reads {count_of(training.split_size or 0, 'sample')} of it", training.ranks),
        ),
        fix=(
            Fix("draw the split with one seed on all ranks",
                code="generator = torch.Generator().manual_seed(0)\n"
                "train, validation = random_split(dataset, lengths, generator=generator)"),
        ),
        details={"share": round(leak.share, 3), "reader": leak.reader, "trainer": leak.trainer, "made": "elsewhere"},
        confidence="high" if leak.share >= PLAIN else "medium",
    )  # fmt: skip


@check("DAT005", family="training", needs=TRAINING, id="training.samplers", required=False, commands=JOB)
def find_sampler_differs(evidence: Evidence) -> Iterable[Finding]:
    """Samplers that share a data set were told different seeds, epochs, lengths or sizes, or the same number."""
    samplings = [sampling for node in evidence.training for sampling in node.samplings]
    if not any(sampling.replicas or sampling.split_reach for sampling in samplings):
        raise NotApplicable("no sampler that takes a shard for each rank was seen")
    for differing in find_differing(evidence):
        yield _tell_differing(differing)
    for overlap in find_overlaps(evidence):
        yield _tell_overlap(overlap)


def _tell_overlap(overlap: Overlap) -> Finding:
    sampling = overlap.sampling
    return Finding(
        message=(
            f"{capitalise(name_set(overlap.ranks))} train on overlapping shards of one "
            f"{_name_data(sampling)}{_place(sampling)}: other ranks read about {overlap.share:.0%} of what "
            "a rank reads too, so some samples are read several times and some never."
        ),
        ranks=overlap.ranks,
        where=_wheres((sampling, "culprit")),
        evidence=(
            EvidenceItem(
                "parts",
                f"have {count_of(overlap.samples, 'index', 'indices')} together, as many as the {_name_data(sampling)}",
                overlap.ranks,
            ),
        ),
        fix=(
            Fix("draw the order with one seed on all ranks before they take their shards",
                code="generator = torch.Generator().manual_seed(epoch)\n"
                "order = torch.randperm(len(dataset), generator=generator)\npart = order[rank::world_size]"),
            Fix("or let torch shard the data", code="sampler = DistributedSampler(dataset, shuffle=True)"),
        ),
        details={"what": "parts", "share": round(overlap.share, 3), "samples": overlap.samples},
        severity="warning",
        confidence="medium",
    )  # fmt: skip


def _name_data(sampling: Sampling) -> str:
    return (sampling.dataset or "").rpartition(".")[2] or "dataset"


def _tell_differing(differing: Differing) -> Finding:
    sampling = differing.sampling
    values = join_words(f"{value} on {name_set(ranks)}" for value, ranks in differing.values)
    name = (sampling.sampler or "the sampler").rpartition(".")[2]
    first = differing.values[0][1]
    ranks = first.union(*(ranks for _, ranks in differing.values))
    said = {
        "seed": f"shuffles with a different seed on each rank ({values}): there is no common order to shard",
        "epoch": (
            f"shuffles with a different epoch on some ranks ({values}): set_epoch is not called on all of "
            "them"
        ),
        "total_size": f"shards different numbers of samples ({values}): the datasets differ in length",
        "num_replicas": f"has different group sizes ({values})",
        "rank": f"has the same rank several times (rank {values}): these ranks read the same shard",
        "missing": (
            f"is configured for {differing.values[0][0]} replicas, but there are {len(ranks)} ranks: the "
            "other shards are never read"
        ),
    }[differing.what]
    place = _place(sampling)
    return Finding(
        message=f"The {name}{' of the loader' + place if place else ''} {said}.",
        ranks=ranks,
        where=_wheres((sampling, "culprit")),
        evidence=tuple(
            EvidenceItem("sampler", f"{differing.what} {value} in iteration {sampling.number}", who)
            for value, who in differing.values
            if differing.what != "missing"
        ),
        fix=(
            Fix("let torch take rank and size from the group, and use one seed on all ranks",
                code="sampler = DistributedSampler(dataset, shuffle=True, seed=0)\n"
                "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"),
        ),
        details={"what": differing.what, "values": {value: str(who) for value, who in differing.values}},
        severity=None if differing.certain else "warning",
        confidence="high" if differing.certain else "medium",
    )  # fmt: skip


@check("DAT007", family="training", needs=TRAINING, id="training.evaluation", required=False, commands=JOB)
def find_evaluation_padded(evidence: Evidence) -> Iterable[Finding]:
    """A sampler gives samples once more in an evaluation, so that all ranks have equally many."""
    if not any(sampling.padded is not None for node in evidence.training for sampling in node.samplings):
        raise NotApplicable("no evaluation with a sampler that shards its data in order was seen")
    for padded in find_padded(evidence):
        yield _tell_padded(padded)


def _tell_padded(padded: Padded) -> Finding:
    sampling = padded.sampling
    length = padded.samples - padded.padded
    few = padded.padded < LITTLE * padded.samples
    return Finding(
        message=(
            f"Evaluation with the loader{_place(sampling)} reads {count_of(padded.padded, 'sample')} of "
            f"{length} twice: the sampler pads, so that {name_set(padded.ranks)} have equally many."
        ),
        ranks=padded.ranks,
        where=_wheres((sampling, "culprit")),
        evidence=(
            EvidenceItem("indices", (
                f"{count_of(padded.samples, 'index', 'indices')}, {padded.padded} of them repeated"
            ), padded.ranks),
        ),
        fix=(
            Fix("cut the gathered results to the length of the dataset",
                code="results = torch.cat(gathered)[: len(dataset)]  # after putting them in order again"),
            Fix("or let each rank evaluate its own shard, without padding",
                code="part = Subset(dataset, range(rank, len(dataset), world_size))"),
        ),
        details={"samples": padded.samples, "padded": padded.padded},
        severity="info" if few else None,
        role="advice" if few else "cause",
        confidence="medium",
    )  # fmt: skip


@check("DAT003", family="training", needs=TRAINING, id="training.batches", required=False, commands=JOB)
def find_uneven_loaders(evidence: Evidence) -> Iterable[Finding]:
    """Ranks of one wrapper have different numbers of batches, and did not come to wait for each other yet."""
    if not any(sampling.trained for node in evidence.training for sampling in node.samplings):
        raise NotApplicable("no loader whose batches trained a model was seen")
    if evidence.standstills:
        raise NotApplicable("the job hung: it is diagnosed by where its ranks are blocked")
    for sampling, counts in find_uneven(evidence):
        told = describe_counts(counts, "batch", "batches")
        luck = "W" if has_failed(evidence) else "No rank hung this time; w"
        yield Finding(
            message=(
                f"The loader{_place(sampling)} has {told}. {luck}here the loop runs to its end, ranks with "
                "more batches hang."
            ),
            ranks=RankSet(counts),
            where=_wheres((sampling, "culprit")),
            evidence=(EvidenceItem("loader", f"length of the DataLoader: {told}"),),
            fix=EVEN,
            details={"batches": list_batches(counts)},
            severity="info",
            role="advice",
            confidence="medium",
        )  # fmt: skip


def _place(sampling: Sampling) -> str:
    return tell_line(user_line(sampling.frames))


def _wheres(*named: tuple[Sampling, str]) -> tuple[Where, ...]:
    return tuple(
        place
        for sampling, role in named
        for place in in_line(user_line(sampling.frames), sampling.ranks, role)
    )
