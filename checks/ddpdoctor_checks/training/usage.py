"""DDP007, DDP012 and PRF005: what costs and gives nothing, or works otherwise than it looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.syncs import PaceLook, Replicated, Unenclosed
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words, name_set
from ddpdoctor_checks.training.wrappers import find_wrapper, name_model

FEWEST_LOOKS = 3
"""Looks that must all show the same number of reductions for each step."""


@check("DDP007", family="training", needs=TRAINING, id="training.no_sync_whole", required=False, commands=JOB)
def find_unenclosed(evidence: Evidence) -> Iterable[Finding]:
    """A backward runs under no_sync, but the forward before it did not: gradients are reduced all the same."""
    if not any(node.steps or node.numerics.counts for node in evidence.training):
        raise NotApplicable("no backward pass was seen on several ranks")
    told: dict[tuple[int, str, int], list[Unenclosed]] = {}
    for node in evidence.training:
        for each in node.syncs.unenclosed:
            line = user_line(each.frames)
            key = each.wrapper, line.file if line else "", line.line if line else 0
            told.setdefault(key, []).append(each)
    for rows in told.values():
        yield _tell_unenclosed(evidence, rows)


def _tell_unenclosed(evidence: Evidence, rows: Sequence[Unenclosed]) -> Finding:
    ranks = RankSet().union(*(row.ranks for row in rows))
    line = user_line(rows[0].frames)
    model = name_model(find_wrapper(evidence, rows[0].wrapper))
    count = max(row.count for row in rows)
    return Finding(
        message=(
            f"The backward pass{tell_line(line)} is under no_sync() but the forward pass of {model} before "
            "it was not, so its gradients are reduced anyway."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem(
                "backwards",
                f"at least {count_of(count, 'such backward pass', 'such backward passes')} on a rank",
                ranks,
            ),
        ),
        fix=(
            Fix(
                "enclose the forward pass too",
                code="with model.no_sync():\n    loss = criterion(model(x), y) / accumulate\n    loss.backward()",
            ),
        ),
        details={"count": count},
    )


@check("DDP012", family="training", needs=TRAINING, id="training.data_parallel", required=False, commands=JOB)
def find_data_parallel(evidence: Evidence) -> Iterable[Finding]:
    """A rank of a distributed job puts a model into nn.DataParallel, which spreads it over all GPUs of the machine."""
    ranks = RankSet().union(*(node.ranks for node in evidence.training))
    if len(ranks) < 2:
        raise NotApplicable("the job has a single rank")
    joined: dict[tuple[str, int | None, str], list[Replicated]] = {}
    for node in evidence.training:
        for each in node.syncs.replicated:
            line = user_line(each.frames)
            joined.setdefault((each.model, each.devices, str(line)), []).append(each)
    for rows in joined.values():
        yield _tell_data_parallel(rows)


def _tell_data_parallel(rows: Sequence[Replicated]) -> Finding:
    first = rows[0]
    ranks = RankSet().union(*(row.ranks for row in rows))
    line = user_line(first.frames)
    idle = first.devices is not None and first.devices < 2
    over = (
        "several GPUs"
        if first.devices is None
        else f"{first.devices} GPUs"
        if not idle
        else "one device: it does nothing"
        if first.devices
        else "no GPU: it does nothing"
    )
    return Finding(
        message=(
            f"{capitalise(name_set(ranks))} {'wraps' if len(ranks) == 1 else 'wrap'} "
            f"{first.model.removeprefix('__main__.')} in nn.DataParallel{tell_line(line)}, each over {over}."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        fix=(
            Fix(
                "remove nn.DataParallel and use one process per GPU",
                code='local = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local)\n'
                "model = DistributedDataParallel(model.to(local), device_ids=[local])",
            ),
        ),
        details={"devices": first.devices, "model": first.model},
        severity="info" if idle else None,
        role="advice",
    )


@check("PRF005", family="training", needs=TRAINING, id="training.reductions", required=False, commands=JOB)
def find_redundant(evidence: Evidence) -> Iterable[Finding]:
    """Gradients of several micro-batches accumulate for one step of the optimizer, and each of them is reduced."""
    looks = [look for node in evidence.training for look in node.syncs.paces]
    if not looks:
        raise NotApplicable("no steps of one optimizer and one model that reduces gradients were seen")
    for number in sorted({look.wrapper for look in looks}):
        own = [look for look in looks if look.wrapper == number]
        each = _count_reductions(own)
        if each is not None and not (find_wrapper(evidence, number) is None and _is_left_off(evidence)):
            yield _tell_redundant(evidence, number, own, each)


def _is_left_off(evidence: Evidence) -> bool:
    """Whether a step was made with the reduction of fully_shard off: what was counted is not all that it reduces."""
    return any(look.unsynced for node in evidence.training for look in node.steps)


def _count_reductions(looks: Sequence[PaceLook]) -> int | None:
    """Return how many reductions each step takes where one would do; None where that does not hold of every look."""
    if len({look.step for look in looks}) < FEWEST_LOOKS or any(look.steps < 1 for look in looks):
        return None
    each = looks[0].synced // looks[0].steps
    accumulates = all(
        not look.alone
        and look.backwards == look.synced == each * look.steps
        and look.kept == (each - 1) * look.steps
        for look in looks
    )
    return each if each > 1 and accumulates else None


def _tell_redundant(evidence: Evidence, number: int, looks: Sequence[PaceLook], each: int) -> Finding:
    wrapper = find_wrapper(evidence, number)
    sharded = wrapper is None
    ranks = RankSet().union(*(look.ranks for look in looks))
    setup = next((setup for node in evidence.training for setup in node.optimizers), None)
    line = user_line(setup.frames) if setup is not None else None
    steps = sorted({look.step for look in looks})
    return Finding(
        message=(
            f"Each step of the optimizer{tell_line(line)} follows {each} backward passes of "
            f"{name_model(wrapper)}, and each of them all-reduces the gradients: {each - 1} of {each} "
            "reductions are wasted."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "noticed"),
        evidence=(
            EvidenceItem(
                "reductions",
                f"{each} for each step, none {_tell_way(sharded)}, at steps up to {join_words(map(str, steps), few=8)}",
            ),
        ),
        fix=(
            Fix(
                "reduce with the last micro-batch only",
                code=_SHARDED if sharded else _WRAPPED,
            ),
        ),
        details={"reductions": each, "looks": len(steps)},
        confidence="medium" if sharded else "high",
        role="advice",
    )


_WRAPPED = (
    "last = (i + 1) % accumulate == 0\n"
    "with contextlib.nullcontext() if last else model.no_sync():\n"
    "    loss = criterion(model(x), y) / accumulate\n    loss.backward()"
)
_SHARDED = (
    "last = (i + 1) % accumulate == 0\n"
    "model.set_requires_gradient_sync(last)   # keeps whole gradients until then: it needs the memory\n"
    "loss = criterion(model(x), y) / accumulate\nloss.backward()"
)


def _tell_way(sharded: bool) -> str:
    return "with set_requires_gradient_sync(False)" if sharded else "under no_sync()"
