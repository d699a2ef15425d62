"""DAT001 and DAT002: the same batches on several ranks, the same order in several epochs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import LoaderSetup
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words, name_set
from ddpdoctor_checks.training.data.batches import (
    STREAM,
    Repeated,
    SameOrder,
    Whole,
    find_repeated,
    find_same_order,
    find_whole,
)

_SETS = 4
"""Sets of ranks that a finding lists."""


@check("DAT001", family="training", needs=TRAINING, id="training.data_sharded", required=False, commands=JOB)
def find_unsharded(evidence: Evidence) -> Iterable[Finding]:
    """Ranks that train one model are given the same batches."""
    if not any(node.batches for node in evidence.training):
        raise NotApplicable("no training batch was seen")
    same = find_repeated(evidence)
    alike: dict[tuple[int, LoaderSetup | None, int], list[Repeated]] = {}
    for repeated in same:
        alike.setdefault((repeated.model, repeated.loader, len(repeated.ranks)), []).append(repeated)
    for several in alike.values():
        yield _tell_repeated(several)
    told = {repeated.loader.loader for repeated in same if repeated.loader is not None}
    for whole in find_whole(evidence):
        if whole.sampling.loader not in told:
            yield _tell_whole(whole)


def _tell_whole(whole: Whole) -> Finding:
    line = user_line(whole.sampling.frames)
    name = (whole.sampling.dataset or "").rpartition(".")[2] or "dataset"
    return Finding(
        message=(
            f"{capitalise(name_set(whole.ranks))} each iterate over all {whole.size} samples of the same "
            f"{name} in one epoch of the loader{tell_line(line)}, each in its own order: an epoch uses each "
            f"sample {len(whole.ranks)} times and takes as long as on one rank."
        ),
        ranks=whole.ranks,
        where=in_line(line, whole.ranks, "culprit"),
        evidence=(
            EvidenceItem(
                "sampler",
                f"{whole.sampling.sampler}: {count_of(whole.size, 'index', 'indices')} on each rank",
            ),
            EvidenceItem("dataset", "its strings, numbers and tensors are equal on these ranks"),
        ),
        fix=(_SHARD,),
        details={"samples": whole.size, "sampler": whole.sampling.sampler},
        severity="warning",
        confidence="medium",
    )


_SHARD = Fix(
    "give each rank its own shard of the data",
    code="sampler = DistributedSampler(dataset, shuffle=True)\n"
    "loader = DataLoader(dataset, batch_size, sampler=sampler)\n"
    "for epoch in range(epochs):\n    sampler.set_epoch(epoch)",
)


def _tell_repeated(several: Sequence[Repeated]) -> Finding:
    """Tell of sets of ranks of one size that are each given the same batches, by one loader."""
    repeated = several[0]
    ranks = RankSet().union(*(each.ranks for each in several))
    loader, call = repeated.loader, user_line(repeated.frames)
    line = user_line(loader.frames) if loader is not None else None
    where = (*in_line(line, ranks, "culprit"), *in_line(call, ranks, "caller"))
    source = (
        f"from the loader{tell_line(line)}" if line is not None else "that did not come from a DataLoader"
    )
    shape = "x".join(map(str, repeated.shape))
    copies = f", each {count_of(repeated.copies, 'time')} in a row: its workers do not shard either"
    evidence = [
        EvidenceItem(
            "batches",
            f"the first {count_of(repeated.batches, 'batch', 'batches')} of epoch {repeated.epoch} "
            f"({shape}) are bit-identical{copies if repeated.copies > 1 else ''}",
            each.ranks,
        )
        for each in several[:_SETS]
    ]
    if loader is not None and loader.sampler is not None:
        told = (
            (f", which is configured for {count_of(loader.replicas, 'rank')}")
            if loader.replicas is not None
            else ""
        )
        evidence.append(EvidenceItem("sampler", f"the sampler is {loader.sampler}{told}"))
    return Finding(
        message=(
            f"{capitalise(name_set(repeated.ranks))} train on the same batches {source}{_name_others(several)}: each "
            f"sample is used {len(repeated.ranks)} times and the ranks contribute nothing to each other."
        ),
        ranks=ranks,
        where=where,
        evidence=tuple(evidence),
        fix=(
            _SHARD,
            Fix("a stream must be sharded by rank and by worker",
                code="shard, shards = rank * workers + worker, world_size * workers\n"
                "for sample in itertools.islice(stream, shard, None, shards):"),
        ),
        details={
            "batches": repeated.batches, "epoch": repeated.epoch, "sampler": loader.sampler if loader else None,
            **({"made": "elsewhere"} if loader is not None and loader.sampler == STREAM else {}),
        },
        severity=None if loader is not None else "info",
        confidence="high" if loader is not None and repeated.batches > 2 else "medium",
    )  # fmt: skip


def _name_others(several: Sequence[Repeated]) -> str:
    others = [name_set(each.ranks) for each in several[1:]]
    if len(others) >= _SETS:
        others[_SETS - 1 :] = [f"{len(others) - _SETS + 1} other sets of ranks"]
    return f", and so do {join_words(others)}" if others else ""


@check("DAT002", family="training", needs=TRAINING, id="training.epoch_set", required=False, commands=JOB)
def find_epoch_unset(evidence: Evidence) -> Iterable[Finding]:
    """A sampler that shuffles gives the same order in each epoch."""
    if not any(node.epochs for node in evidence.training):
        raise NotApplicable("no epoch of a loader with indices was seen")
    for same in find_same_order(evidence):
        if same.loader.shuffle is not False:
            yield _tell_order(same)


def _tell_order(same: SameOrder) -> Finding:
    loader = same.loader
    line = user_line(loader.frames)
    name = (loader.sampler or "the sampler").rpartition(".")[2]
    told = len(set(loader.epochs)) > 1
    why = (
        "set_epoch is called, but the sampler does not use it"
        if told
        else "set_epoch is not called"
        if loader.epochs
        else "set_epoch is not called, or the sampler does not use it"
        if loader.sets_epoch
        else "the sampler has no set_epoch"
    )
    place = f" of the loader{tell_line(line)}" if line is not None else ""
    first = ", ".join(map(str, same.first[:6]))
    return Finding(
        message=f"Every epoch{place} has the same order on {name_set(same.ranks)}: {why} ({name}).",
        ranks=same.ranks,
        where=in_line(line, same.ranks, "culprit"),
        evidence=(
            EvidenceItem(
                "indices",
                f"epochs {same.epoch - 1} and {same.epoch} both begin with {first}, … "
                f"({count_of(same.compared, 'index', 'indices')} compared)",
                same.ranks,
            ),
        ),
        fix=(
            Fix(
                "set the epoch before the loader is iterated",
                code="for epoch in range(epochs):\n    sampler.set_epoch(epoch)\n    for batch in loader:\n        …",
            ),
            *(
                (Fix("let the sampler use the epoch", code="generator.manual_seed(self.seed + self.epoch)"),)
                if told
                else ()
            ),
        ),
        details={"sampler": loader.sampler, "epochs": list(loader.epochs), "compared": same.compared},
        severity=None if loader.sets_epoch and loader.shuffles else "info",
        confidence="high" if loader.sets_epoch and loader.shuffles else "medium",
    )
