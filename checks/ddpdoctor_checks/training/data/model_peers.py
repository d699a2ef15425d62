"""DAT009: ranks that compute one model together are given different samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.layout import Axis
from ddpdoctor.evidence.training.fingerprints import BatchLook, LoaderSetup
from ddpdoctor.facts import strategies
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words, name_set
from ddpdoctor_checks.training.data.batches import find_loader
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


@check("DAT009", family="training", needs=TRAINING, id="training.model_peers", required=False, commands=JOB)
def find_model_peers_apart(evidence: Evidence) -> Iterable[Finding]:
    """Tensor-parallel ranks are given different batches, or the stages of a pipeline different samples."""
    axes = find_layout(evidence).axes
    tensor = [axis for axis in axes if axis.role == strategies.TENSOR]
    stages = list_pipelines(axes)
    pieces = any(look.pieces for node in evidence.training for look in node.batches)
    if not tensor and not stages and not pieces:
        raise NotApplicable(
            "no tensor-parallel ranks, no stages of a pipeline and no pieces of sequences were seen"
        )
    if pieces:
        yield from find_wholes_apart(evidence, [group for axis in axes for group in axis.groups])
    for apart in find_apart(evidence, tensor):
        yield _tell(apart)
    for apart in find_orders_apart(evidence, stages):
        yield _tell_stages(apart)


def list_pipelines(axes: Iterable[Axis]) -> list[Axis]:
    """Return the pipelines whose inputs one rank reads, and whose labels another."""
    axes = tuple(axes)
    loops = {g for axis in axes if axis.strategy == strategies.PIPELINE_LOOP.name for g in axis.groups}
    kept = (a for a in axes if a.strategy == strategies.PIPELINE_STAGE.name)
    return [
        each for a in kept if (each := replace(a, groups=tuple(g for g in a.groups if g not in loops))).groups
    ]


def find_orders_apart(evidence: Evidence, axes: Iterable[Axis]) -> Iterator[Apart]:
    """Yield the loaders whose samplers give the first and the last stage of pipelines different indices."""
    epochs: dict[str, set[int]] = {}
    for node in evidence.training:
        for look in node.epochs:
            if look.steps:
                epochs.setdefault(look.loader, set()).add(look.number)
    for axis in axes:
        for loader, numbers in sorted(epochs.items()):
            ends = [(group, RankSet([min(group), max(group)])) for group in axis.groups]
            groups = tuple(
                group
                for group, both in ends
                if all(_compare_indices(evidence, loader, number, both) for number in numbers)
            )
            if groups:
                yield Apart(axis, groups, find_loader(evidence, loader), (), True)


def _tell_stages(apart: Apart) -> Finding:
    loader, axis = apart.loader, apart.axis
    line = user_line(loader.frames) if loader is not None else None
    ranks = RankSet().union(*apart.groups)
    dimension = f" along the mesh dimension {axis.name}" if axis.name else ""
    sampler = loader.sampler if loader is not None else None
    return Finding(
        message=(
            f"The first and the last stage of the pipeline of {name_set(ranks)}{dimension} read different samples "
            f"from the loader{tell_line(line)}: the labels are not those of the inputs."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem(
                "layout", f"pipelines: {join_words(f'{{{group}}}' for group in apart.groups[:4])}", ranks
            ),
            EvidenceItem(
                "indices", "in each epoch the order differs between the first and the last rank", ranks
            ),
            *((EvidenceItem("sampler", f"the sampler is {sampler}"),) if sampler else ()),
        ),
        fix=(
            Fix(
                "shuffle in the same order on all stages of a pipeline, and shard by the data-parallel rank only",
                code="generator = torch.Generator().manual_seed(seed)  # the same on all stages\n"
                "loader = DataLoader(dataset, batch_size, shuffle=True, generator=generator)",
            ),
            Fix(
                "or send the labels from the first stage to the last one",
                code="dist.send(labels, dst=last) if first else dist.recv(labels, src=first)",
            ),
        ),
        details={"dimension": axis.name, "groups": [str(group) for group in apart.groups]},
        severity="warning",
        confidence="medium",
    )


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


def find_wholes_apart(evidence: Evidence, groups: Iterable[RankSet]) -> Iterator[Finding]:
    """Yield where ranks take the pieces that together make a sequence, each of a sequence of its own.

    Args:
        evidence: of a training.
        groups: ranks that may work together, besides all of them.
    """
    everyone = RankSet().union(*(node.ranks for node in evidence.training))
    looks: dict[tuple[int, str, int], dict[int, list[BatchLook]]] = {}
    for node in evidence.training:
        for look in node.batches:
            rows = looks.setdefault((look.model, look.loader, look.epoch), {})
            rows.setdefault(look.index, []).append(look)
    for rows in looks.values():
        for group in dict.fromkeys((everyone, *groups)):
            held = [_find_wholes(each, group) for each in rows.values()]
            known = [each for each in held if each is not None]
            if len(known) >= FEWEST and len(known) == len(held) and all(len(set(each)) > 1 for each in known):
                yield _tell_wholes(group, rows)
                return


def _find_wholes(looks: Iterable[BatchLook], group: RankSet) -> list[str] | None:
    """Return the wholes of which the ranks of a group hold one piece each, in a row; None where they do not."""
    rows = {each.rank: each for look in looks for each in reversed(look.pieces) if each.rank in group}
    placed = sorted(rows.values(), key=lambda each: each.begin)
    if len(group) < 2 or len(placed) < len(group) or len({(each.length, each.size) for each in placed}) > 1:
        return None
    length, size = placed[0].length, placed[0].size
    tiled = all(each.begin == place * length for place, each in enumerate(placed))
    return [each.digest for each in placed] if tiled and 0 <= size - len(placed) * length < length else None


def _tell_wholes(group: RankSet, rows: Mapping[int, list[BatchLook]]) -> Finding:
    looks = [look for each in rows.values() for look in each]
    call = user_line(next((look.frames for look in looks if look.frames), ()))
    piece = next(each for look in looks for each in look.pieces if each.rank in group)
    return Finding(
        message=(
            f"{capitalise(name_set(group))} each give the model{tell_line(call)} another piece, of {piece.length} out "
            f"of {piece.size}, in the order of ranks as in context parallelism, and the tensors that they take them "
            "from differ: each piece is of another sequence."
        ),
        ranks=group,
        where=in_line(call, group, "culprit"),
        evidence=(
            EvidenceItem(
                "batches",
                f"in {count_of(len(rows), 'batch', 'batches')} the pieces of these ranks cover one dimension, and the "
                "tensors of which they are views are not the same",
                group,
            ),
        ),
        fix=(
            Fix(
                "read the same sequences on all ranks that split them: seed and shard by the data-parallel rank",
                code="stream = TokenStream(seed=seed + data_parallel_rank)   # not the global rank\n"
                "piece = tokens.chunk(context_parallel_size, dim=1)[context_parallel_rank]",
            ),
        ),
        details={"length": piece.length, "size": piece.size},
        severity="warning",
        confidence="medium",
    )


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
