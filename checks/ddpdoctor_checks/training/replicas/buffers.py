"""NUM002 and DDP013: buffers that differ where they are used, statistics of a few samples each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import StepLook, TensorLook, WrapperSetup
from ddpdoctor.evidence.training.merging import join_evaluations, join_optimizers
from ddpdoctor.evidence.training.numerics import BufferLook
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, count_of, join_words, name_set
from ddpdoctor_checks.training.replicas.divergence import differ_slightly
from ddpdoctor_checks.training.wrappers import find_wrapper, list_groups, list_wrappers, name_model

FEW_SAMPLES = 8
"""Samples of a rank below which the mean and variance of a batch are too noisy: the error of BatchNorm rises steeply
below 8 in https://arxiv.org/abs/1803.08494, figure 1."""
VERY_FEW = 4
"""Samples of a rank below which the finding is a warning; from which on it is a hint."""
_NAMES = 3
_COUNTERS = ("num_batches_tracked",)
"""Buffers of torch's BatchNorm that no evaluation uses."""
_STATISTICS = (*_COUNTERS, "running_mean", "running_var")
"""Buffers of torch's BatchNorm: no forward in training uses them."""
_THROUGH = Fix(
    "evaluate through the wrapper",
    code="model.eval()\nwith torch.no_grad():\n    out = model(x)   # not model.module(x)",
)
_EQUAL = (
    Fix(
        "make buffers equal before the evaluation",
        code="for buffer in model.module.buffers():\n    dist.broadcast(buffer, src=0)",
    ),
    Fix(
        "on GPUs synchronize BatchNorm across ranks",
        code="model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)   # before wrapping",
    ),
)
Shares = tuple[Share, ...]


@check("NUM002", family="training", needs=TRAINING, id="training.buffers", required=False, commands=JOB)
def find_buffers(evidence: Evidence) -> Iterable[Finding]:
    """Buffers of a wrapped model differ over ranks where several evaluate with them, or train with them."""
    trained = list(_list_trained(evidence))
    if not trained and not any(node.numerics.evaluations for node in evidence.training):
        raise NotApplicable("no evaluation with buffers that the wrapper does not broadcast was seen")
    told: set[int] = set()
    for look in join_evaluations(evidence.training):
        wrapper = find_wrapper(evidence, look.wrapper)
        for group in list_groups(evidence, look.wrapper):
            ranks = RankSet(rank for rank in look.ranks if rank in group)
            differing = _list_differing(look.buffers, ranks)
            if differing and look.wrapper not in told:
                told.add(look.wrapper)
                yield _tell_buffers(look, wrapper, ranks, differing)
    for setup, step, buffers in trained:
        if setup.number not in told:
            told.add(setup.number)
            yield _tell_trained(setup, step, buffers)


def _list_trained(evidence: Evidence) -> Iterable[tuple[WrapperSetup, StepLook, Sequence[TensorLook]]]:
    """Yield wrappers that do not broadcast buffers, which ranks with equal parameters change each in its own way.

    Without what has a row for each sample of a batch: the state of a stream, which is the rank's own.
    """
    wrappers = {each.number: each for each in list_wrappers(evidence) if not each.broadcasts}
    sizes = {look.shape[0] for node in evidence.training for look in node.batches if look.shape}
    for _, looks in join_optimizers(evidence.training):
        apart = [look for look in looks if look.buffers]
        if len(apart) < 2 or len(apart[-1].values) != 1:
            continue
        before = {(each.model, each.name): _list_digests(each) for each in apart[0].buffers}
        for number, setup in wrappers.items():
            changed = [
                each
                for each in apart[-1].buffers
                if each.model == number
                and not (each.trainable or (each.shape and each.shape[0] in sizes))
                and each.name.rpartition(".")[2] not in _STATISTICS
                and not _is_slight([share.norm for share in each.values])
                and not _list_digests(each) & before.get((number, each.name), set())
            ]
            if changed:
                yield setup, apart[-1], changed


def _list_digests(buffer: TensorLook) -> set[str]:
    return {share.digest for share in buffer.values}


def _list_differing(buffers: Mapping[str, Shares], ranks: RankSet) -> dict[str, Shares]:
    found = {}
    for name, shares in buffers.items():
        by_digest: dict[str, Share] = {}
        for share in shares:
            who = RankSet(rank for rank in share.ranks if rank in ranks)
            if who:
                known = by_digest.get(share.digest)
                by_digest[share.digest] = replace(share, ranks=known.ranks.union(who) if known else who)
        if (
            len(by_digest) > 1
            and name.rpartition(".")[2] not in _COUNTERS
            and not _is_slight([share.norm for share in by_digest.values()])
        ):
            found[name] = tuple(by_digest.values())
    return found


def _is_slight(norms: Sequence[float | None]) -> bool:
    """Whether buffers differ by rounding; where norms are equal and contents are not, places or signs differ."""
    return len(set(norms)) > 1 and differ_slightly(norms)


def _say_norms(shares: Shares) -> str:
    return join_words(
        f"{share.norm:.5g} on {name_set(share.ranks)}" if share.norm is not None else name_set(share.ranks)
        for share in shares[:4]
    )


def _tell_buffers(
    look: BufferLook, setup: WrapperSetup | None, ranks: RankSet, differing: Mapping[str, Shares]
) -> Finding:
    line = user_line(look.frames)
    wrap = user_line(setup.frames) if setup is not None and not look.broadcasts else None
    how = (
        ": it is called without its wrapper, which would broadcast them"
        if look.door == "module" and look.broadcasts
        else ", and its DistributedDataParallel has broadcast_buffers=False"
    )
    names = list(differing)
    first = differing[names[0]]
    return Finding(
        message=f"{capitalise(name_set(ranks))} evaluate {name_model(setup)}{tell_line(line)} with different buffers "
        f"({join_words(names, few=_NAMES)}){how}.",
        ranks=ranks,
        where=(*in_line(line, ranks, "culprit"), *in_line(wrap, ranks, "condition")),
        evidence=(
            EvidenceItem("buffers", f"after step {look.step}: norm of {names[0]} is {_say_norms(first)}"),
            EvidenceItem("buffers", f"{count_of(max(look.differing, len(names)), 'buffer')} differ"),
        ),
        fix=(_THROUGH, *_EQUAL) if look.broadcasts else _EQUAL,
        details={"step": look.step, "evaluation": look.evaluation, "door": look.door, "buffers": names},
        confidence="high" if look.broadcasts else "medium",
    )  # fmt: skip


def _tell_trained(setup: WrapperSetup, look: StepLook, buffers: Sequence[TensorLook]) -> Finding:
    line = user_line(setup.frames)
    ranks = RankSet().union(*(share.ranks for share in buffers[0].values))
    names = [each.name for each in buffers]
    return Finding(
        message=f"{capitalise(name_set(ranks))} train {name_model(setup)} with different buffers "
        f"({join_words(names, few=_NAMES)}): each rank updates its own from its own data, and its "
        "DistributedDataParallel has broadcast_buffers=False. A checkpoint holds those of the rank that saves.",
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem("buffers", f"before step {look.step}: norm of {names[0]} is {_say_norms(buffers[0].values)}"),
            EvidenceItem("buffers", "they change during training, and the parameters are equal on these ranks"),
        ),
        fix=(
            Fix(
                "reduce what updates the buffers, so that all ranks apply the same update",
                code="dist.all_reduce(counts)   # and sums, before the moving average takes them",
            ),
            Fix("keep them as they are if each rank's buffers are meant to be its own"),
        ),
        details={"step": look.step, "buffers": names},
        confidence="medium",
    )  # fmt: skip


@check("DDP013", family="training", needs=TRAINING, id="training.batch_norm", required=False, commands=JOB)
def find_batch_norm(evidence: Evidence) -> Iterable[Finding]:
    """BatchNorm in a wrapped model normalises over fewer than 8 samples of each rank."""
    wrappers = {wrapper.number: wrapper for wrapper in list_wrappers(evidence) if len(wrapper.group) != 1}
    if not wrappers:
        raise NotApplicable("no DistributedDataParallel was seen")
    for number, setup in sorted(wrappers.items()):
        sizes = [
            look.shape[0]
            for node in evidence.training
            for look in node.batches
            if look.model == number and look.shape
        ]
        if setup.batch_norms and sizes and max(sizes) < FEW_SAMPLES:
            ranks = RankSet().union(*list_groups(evidence, number))
            yield _tell_batch_norm(setup, ranks, max(sizes))


def _tell_batch_norm(setup: WrapperSetup, ranks: RankSet, size: int) -> Finding:
    line = user_line(setup.frames)
    samples = count_of(size, "sample")
    verb = choose_form(setup.batch_norms, "normalises", "normalise")
    return Finding(
        message=(
            f"{count_of(setup.batch_norms, 'BatchNorm')} of {name_model(setup)} {verb} over the {samples} "
            "of each rank, not over those of all ranks."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "noticed"),
        evidence=(EvidenceItem("batches", f"the largest batch seen on a rank has {samples}"),),
        fix=(
            Fix(
                "on GPUs synchronize BatchNorm across ranks",
                code="model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)   # before wrapping",
            ),
            Fix("or use GroupNorm or LayerNorm, which do not depend on other samples"),
        ),
        details={"modules": setup.batch_norms, "samples": size},
        role="advice",
        severity=None if size < VERY_FEW else "info",
        confidence="medium",
    )  # fmt: skip
