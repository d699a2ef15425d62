"""DAT009: ranks that compute one model together are given different samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.layout import Axis
from ddpdoctor.evidence.training import BatchLook, LoaderSetup
from ddpdoctor.facts import strategies
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words, name_set
from ddpdoctor_checks.training.batches import find_loader
from ddpdoctor_checks.training.parted_replicas import NEEDS
from ddpdoctor_checks.training.wrappers import find_layout

FEWEST = 2
"""Batches that must all differ."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Peers that were given different batches."""

    axis: Axis
    groups: tuple[RankSet, ...]
    loader: LoaderSetup | None
    looks: tuple[BatchLook, ...]
    indices_differ: bool | None
    """The loader's sampler gave them other indices; None where that is not known."""


@check("DAT009", family="training", needs=NEEDS, id="training.model_peers", required=False, commands=JOB)
def find_model_peers_apart(evidence: Evidence) -> Iterable[Finding]:
    """Tensor-parallel ranks are given different batches."""
    axes = [axis for axis in find_layout(evidence).axes if axis.role == strategies.TENSOR]
    if not axes:
        raise NotApplicable("no tensor-parallel ranks were seen")
    for apart in find_apart(evidence, axes):
        yield _tell(apart)


def find_apart(evidence: Evidence, axes: Iterable[Axis]) -> Iterator[Apart]:
    """Yield the loaders whose batches differ at the door of a model that ranks compute together."""
    looks: dict[tuple[int, str, int], list[BatchLook]] = {}
    for node in evidence.training:
        for look in node.batches:
            looks.setdefault((look.model, look.loader, look.epoch), []).append(look)
    told = set()
    for axis in axes:
        for (_, loader, epoch), rows in sorted(looks.items()):
            groups = tuple(group for group in axis.groups if _all_differ(rows, group))
            if not groups or (axis.name, loader) in told:
                continue
            other = _compare_indices(evidence, loader, epoch, groups[0])
            if other is False:
                continue  # the same samples, of which each takes its part: a piece of the sequence, by design
            told.add((axis.name, loader))
            yield Apart(axis, groups, find_loader(evidence, loader), tuple(rows), other)


def _all_differ(rows: Iterable[BatchLook], group: RankSet) -> bool:
    """Whether ranks of a group were given different batches at each place that was looked at."""
    by_index: dict[int, dict[int, str]] = {}
    for row in rows:
        for share in row.batches:
            for rank in share.ranks:
                if rank in group:
                    by_index.setdefault(row.index, {})[rank] = share.digest
    whole = [held for held in by_index.values() if len(held) == len(group)]
    return len(whole) >= FEWEST and all(len(set(held.values())) > 1 for held in whole)


def _compare_indices(evidence: Evidence, loader: str, epoch: int, group: RankSet) -> bool | None:
    digests = {
        rank: look.digest
        for node in evidence.training
        for look in node.epochs
        for rank in look.ranks
        if look.loader == loader and look.number == epoch and look.compared and rank in group
    }
    return len(set(digests.values())) > 1 if len(digests) == len(group) else None


def _tell(apart: Apart) -> Finding:
    loader, axis = apart.loader, apart.axis
    line = user_line(loader.frames) if loader is not None else None
    call = user_line(next((look.frames for look in apart.looks if look.frames), ()))
    ranks = RankSet().union(*apart.groups)
    dimension = f" along the mesh dimension {axis.name}" if axis.name else ""
    groups = join_words(f"{{{group}}}" for group in apart.groups[:4])
    evidence = [
        EvidenceItem("layout", f"tensor-parallel groups{dimension}: {groups}", ranks),
        EvidenceItem(
            "batches",
            f"the first {count_of(len({look.index for look in apart.looks}), 'batch', 'batches')} of epoch "
            f"{apart.looks[0].epoch} differ within these groups",
            ranks,
        ),
    ]
    if loader is not None and loader.sampler is not None:
        size = (
            (f", which is configured for {count_of(loader.replicas, 'rank')}")
            if loader.replicas is not None
            else ""
        )
        evidence.append(EvidenceItem("sampler", f"the sampler is {loader.sampler}{size}"))
    certain = bool(apart.indices_differ)
    return Finding(
        message=(
            f"{capitalise(name_set(ranks))} train on different batches{tell_line(line or call)} although "
            f"they are tensor-parallel peers{dimension}: each computes a part of one layer, and the parts "
            "are added as if they came from the same samples."
        ),
        ranks=ranks,
        where=(
            *in_line(line, ranks, "culprit"),
            *in_line(call, ranks, "caller" if line is not None else "culprit"),
        ),
        evidence=tuple(evidence),
        fix=(
            Fix(
                "give all tensor-parallel ranks of a replica the same samples: shard by the data-parallel rank",
                code='dp = mesh["dp"]\nsampler = DistributedSampler(dataset, num_replicas=dp.size(), '
                "rank=dp.get_local_rank())",
            ),
        ),
        details={"dimension": axis.name, "groups": [str(group) for group in apart.groups]},
        severity=None if certain else "warning",
        confidence="high" if certain else "medium",
    )
