"""DAT004, DAT005 and DAT007: samplers that do not fit each other, splits that differ, evaluation that counts twice."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.sampling import Sampling
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, Where, check, check_also
from ddpdoctor_checks.crash.frames import tell_line, user_line
from ddpdoctor_checks.crash.judging import has_failed
from ddpdoctor_checks.crash.telling import JOB
from ddpdoctor_checks.hangs.findings import find_uneven_batches
from ddpdoctor_checks.hangs.loaders import EVEN, list_batches
from ddpdoctor_checks.places import in_line
from ddpdoctor_checks.training.findings import NEEDS
from ddpdoctor_checks.training.samplers import (
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
from ddpdoctor_checks.wording import capitalise, count_of, describe_counts, join_words, name_set

LITTLE = 0.05
"""Share of samples that count twice, below which that is an advice."""
PLAIN = 0.05
"""Share of a validation set that another rank trains on, from which on an estimate by sketches is sure of it."""


@check(
    "DAT004",
    name="split-differs",
    title="Ranks split training and validation data differently",
    severity="error",
    family="training",
    needs=NEEDS,
    since="0.1.0",
    id="training.splits",
    required=False,
    commands=JOB,
)
def find_split_differs(evidence: Evidence) -> Iterable[Finding]:
    """What one rank validates on is in the training set of another.

    What it looks for:
        Loaders over a ``Subset`` (also of ``random_split``) or with a ``SubsetRandomSampler``: indices that a rank's
        evaluation reads and that are in the part that another rank of the same wrapper trains on.

    Why it matters:
        A split that is drawn by each rank's own random numbers differs over ranks. The model has seen the
        validation data through the other ranks' gradients, and validation looks better than it is.

    How it decides:
        By sketches of the sets of indices (the 128 smallest hashes of each), so the share is an estimate. Only
        where the data sets under the subsets hold the same by their attributes, and where no rank's own parts
        overlap. Training is what a model in training was given. ``lint`` tells ``random_split`` without a generator
        where seeds hang on the rank (as a warning where nothing is seeded) in a program that trains a wrapped model,
        and imports no module that was not given and may seed.

    Known false alarms:
        Ranks whose data sets hold different samples behind equal attributes.

    Fix:
        Split with a generator of one seed on all ranks.

    References:
        https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.random_split
    """
    if not any(sampling.split for node in evidence.training for sampling in node.samplings):
        raise NotApplicable("no loader was seen that reads an explicit part of a data set")
    for leak in find_leaks(evidence):
        yield _tell_leak(leak)


def _tell_leak(leak: Leak) -> Finding:
    validation, training = leak.validation, leak.training
    share = f"{leak.share:.0%}" if leak.share >= 0.01 else "some"
    return Finding(
        message=f"{capitalise(name_set(leak.ranks))} have split the data set differently: about {share} of what rank "
        f"{leak.reader} validates on{_place(validation)} is in the part that rank {leak.trainer} trains on"
        f"{_place(training)}.",
        ranks=leak.ranks,
        where=_wheres((validation, "culprit"), (training, "caller")),
        evidence=(
            EvidenceItem("validation", f"reads {count_of(validation.split_size or 0, 'sample')} of a "
                         f"{validation.dataset}", validation.ranks),
            EvidenceItem("training", f"reads {count_of(training.split_size or 0, 'sample')} of it", training.ranks),
        ),
        fix=(
            Fix("let all ranks draw the split by one seed",
                code="generator = torch.Generator().manual_seed(0)\n"
                "train, validation = random_split(dataset, lengths, generator=generator)"),
        ),
        details={"share": round(leak.share, 3), "reader": leak.reader, "trainer": leak.trainer},
        confidence="high" if leak.share >= PLAIN else "medium",
    )  # fmt: skip


@check(
    "DAT005",
    name="sampler-differs",
    title="Samplers of ranks do not fit each other",
    severity="error",
    family="training",
    needs=NEEDS,
    since="0.1.0",
    id="training.samplers",
    required=False,
    commands=JOB,
    explains=("DAT001",),
)
def find_sampler_differs(evidence: Evidence) -> Iterable[Finding]:
    """Samplers that share a data set were told different seeds, epochs, lengths or sizes, or the same number.

    What it looks for:
        Attributes of samplers like torch's ``DistributedSampler`` (seed, epoch, num_replicas, total_size, rank), at
        the first iterations of a loader, compared over the ranks of one wrapper. Where ranks take their parts by hand,
        as a ``Subset`` or with a ``SubsetRandomSampler``: whether these overlap.

    Why it matters:
        Each rank takes every N-th sample of what it believes to be the common order. Where seeds or epochs differ
        there is no common order: some samples are read several times and some never. Where two ranks have one number
        they read the same.

    How it decides:
        Seeds and epochs count only where the sampler shuffles and ranks take different parts. Samplers of one replica
        are left alone. It is an error for torch's own class in training; for other classes, which may use the
        value in another way, and in evaluation, a warning.

        Parts taken by hand overlap where sketches of their indices (the 128 smallest hashes of each) do, by a third or
        more for half of the ranks, and where they are of one data set and have as many indices together as that: the
        largest index tells its size. Not where ranks have the same part, nor where another part of that data set is
        evaluated on. Ranks may mean to draw apart, so it is a warning.

        In the source (``lint``): ``random.shuffle``, ``torch.randperm`` and the like, without a generator, in a
        program that trains a wrapped model, where each rank then takes a part by its number
        (``order[rank::world_size]``) and nothing else is done with the order in between. An error where these random
        numbers are seeded by the rank, a warning where nothing seeds them. Nothing where a seed may be the same on all
        ranks, or where the program imports modules that were not given and may seed.

    Known false alarms:
        A sampler of your own, with these attributes, that means them differently. Ranks that each draw a random part
        of the data on purpose, of as many samples as an equal share has.

    Fix:
        Give all ranks one seed and the same data set, and the rank and size of the group that shares it.

    References:
        https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    samplings = [sampling for node in evidence.training for sampling in node.samplings]
    if not any(sampling.replicas or sampling.split_reach for sampling in samplings):
        raise NotApplicable("no sampler was seen that takes a part of the data for each rank")
    for differing in find_differing(evidence):
        yield _tell_differing(differing)
    for overlap in find_overlaps(evidence):
        yield _tell_overlap(overlap)


def _tell_overlap(overlap: Overlap) -> Finding:
    sampling = overlap.sampling
    return Finding(
        message=f"{capitalise(name_set(overlap.ranks))} train on parts of one {_name_data(sampling)} that overlap"
        f"{_place(sampling)}: about {overlap.share:.0%} of what a rank reads others read too, so some samples "
        "are read several times and some never.",
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
            Fix("let all ranks draw the order by one seed before they take their parts",
                code="generator = torch.Generator().manual_seed(epoch)\n"
                "order = torch.randperm(len(dataset), generator=generator)\npart = order[rank::world_size]"),
            Fix("or let torch share the data out", code="sampler = DistributedSampler(dataset, shuffle=True)"),
        ),
        details={"what": "parts", "share": round(overlap.share, 3), "samples": overlap.samples},
        severity="warning",
        confidence="medium",
    )  # fmt: skip


def _name_data(sampling: Sampling) -> str:
    return (sampling.dataset or "").rpartition(".")[2] or "data set"


def _tell_differing(differing: Differing) -> Finding:
    sampling = differing.sampling
    values = join_words(f"{value} on {name_set(ranks)}" for value, ranks in differing.values)
    name = (sampling.sampler or "the sampler").rpartition(".")[2]
    first = differing.values[0][1]
    ranks = first.union(*(ranks for _, ranks in differing.values))
    said = {
        "seed": f"shuffles by another seed on each rank ({values}): there is no common order to take parts of",
        "epoch": f"shuffles by another epoch on some ranks ({values}): set_epoch is not called on all of them",
        "total_size": f"shares out another number of samples ({values}): the data sets differ in length",
        "num_replicas": f"was told different sizes of the group ({values})",
        "rank": f"was told the same rank several times (rank {values}): these ranks read the same part",
        "missing": f"was told of {differing.values[0][0]} replicas, and there are {len(ranks)} ranks: the other parts "
        "are never read",
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
            Fix("let torch take rank and size from the group, and give all ranks one seed",
                code="sampler = DistributedSampler(dataset, shuffle=True, seed=0)\n"
                "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"),
        ),
        details={"what": differing.what, "values": {value: str(who) for value, who in differing.values}},
        severity=None if differing.certain else "warning",
        confidence="high" if differing.certain else "medium",
    )  # fmt: skip


@check(
    "DAT007",
    name="evaluation-padded",
    title="Evaluation counts some samples twice",
    severity="warning",
    family="training",
    needs=NEEDS,
    since="0.1.0",
    id="training.evaluation",
    required=False,
    commands=JOB,
)
def find_evaluation_padded(evidence: Evidence) -> Iterable[Finding]:
    """A sampler gives samples once more in an evaluation, so that all ranks have equally many.

    What it looks for:
        Indices that a sampler like torch's ``DistributedSampler``, not shuffling, gives below those that it has
        given before, in iterations of a loader that no model was trained with.

    Why it matters:
        The first samples of the data set are added at the end. An accuracy that is reduced over ranks counts them
        twice, and its value depends on the number of GPUs.

    How it decides:
        By the indices themselves. Under 5 % of the samples it is an advice.

        In the source (``lint``): a loop without a backward that adds something up over a loader with a
        DistributedSampler that drops nothing, in a program that joins results over ranks. How many samples there are
        does not stand there, so it is an advice; nothing where a name, or a cut to the length of the data, shows that
        the program knows of them.

    Known false alarms:
        Results that are cut to the length of the data set after they were gathered.

    Fix:
        Evaluate without padding, or cut the gathered results to ``len(dataset)``.

    References:
        https://github.com/pytorch/pytorch/issues/25162
    """
    if not any(sampling.padded is not None for node in evidence.training for sampling in node.samplings):
        raise NotApplicable("no evaluation was seen whose sampler shares out its data in order")
    for padded in find_padded(evidence):
        yield _tell_padded(padded)


def _tell_padded(padded: Padded) -> Finding:
    sampling = padded.sampling
    length = padded.samples - padded.padded
    few = padded.padded < LITTLE * padded.samples
    return Finding(
        message=f"Evaluation with the loader{_place(sampling)} reads {count_of(padded.padded, 'sample')} of {length} "
        f"twice: the sampler fills up, so that {name_set(padded.ranks)} have equally many.",
        ranks=padded.ranks,
        where=_wheres((sampling, "culprit")),
        evidence=(
            EvidenceItem("indices", f"{count_of(padded.samples, 'index', 'indices')} given, {padded.padded} of them "
                         "once more", padded.ranks),
        ),
        fix=(
            Fix("cut what was gathered to the length of the data set",
                code="results = torch.cat(gathered)[: len(dataset)]  # after putting them in order again"),
            Fix("or let each rank evaluate its own part, without padding",
                code="part = Subset(dataset, range(rank, len(dataset), world_size))"),
        ),
        details={"samples": padded.samples, "padded": padded.padded},
        severity="info" if few else None,
        role="advice" if few else "cause",
        confidence="medium",
    )  # fmt: skip


@check_also(
    find_uneven_batches,
    id="training.batches",
    family="training",
    needs=NEEDS,
    required=False,
    commands=JOB,
)
def find_uneven_loaders(evidence: Evidence) -> Iterable[Finding]:
    """Ranks of one wrapper have different numbers of batches, and did not come to wait for each other yet."""
    if not any(sampling.trained for node in evidence.training for sampling in node.samplings):
        raise NotApplicable("no loader was seen whose batches a model was trained with")
    if evidence.standstills:
        raise NotApplicable("the job stood still: that is judged by where its ranks stood")
    for sampling, counts in find_uneven(evidence):
        told = describe_counts(counts, "batch", "batches")
        luck = "W" if has_failed(evidence) else "Nobody waited for ever this time; w"
        yield Finding(
            message=f"The loader{_place(sampling)} gives {told}. {luck}here the loop runs to its end, those with more "
            "wait for the others.",
            ranks=RankSet(counts),
            where=_wheres((sampling, "culprit")),
            evidence=(EvidenceItem("loader", f"length of the loader: {told}"),),
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
