"""PRF006: steps that are mostly communication, of DistributedDataParallel and of fully_shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.evidence.training.timing import BACKWARD, ShardTimes
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import count_of, format_bytes
from ddpdoctor_checks.training.lateness import find_step, list_times
from ddpdoctor_checks.training.step_times import break_down, find_step_line, name_time
from ddpdoctor_checks.training.wrappers import list_wrappers

BOUND_SHARE, BOUND_S, BOUND_BYTES = 0.5, 0.005, 1 << 20
"""Least share of a step that is communication and nothing else, least length of the step in seconds, and least bytes of
the gradients of a reduction, or of the parameters that are gathered."""
FEWEST_LOOKS = 5
"""Iterations that were measured."""
_MEASURE = Fix("measure the network", "ddpdoctor check")


@check("PRF006", family="training", needs=TRAINING, id="training.communication", required=False, commands=JOB)
def find_communication_bound(evidence: Evidence) -> Iterator[Finding]:
    """Most of a step passes in communication that nothing hides, also where no rank is late."""
    nodes = [node for node in evidence.training if node.timing.exposed_s is not None]
    shards = [node.timing.shards for node in evidence.training if node.timing.shards is not None]
    if max((each.steps for each in shards), default=0) >= FEWEST_LOOKS:
        yield from _judge_shards(evidence, min(shards, key=lambda each: each.gather_s + each.reduce_s))
    elif not nodes or max(node.timing.iterations for node in nodes) < FEWEST_LOOKS:
        raise NotApplicable(
            "neither DistributedDataParallel nor fully_shard was measured in enough iterations"
        )
    if nodes:
        yield from _judge_reduction(evidence, nodes)


def _judge_reduction(evidence: Evidence, nodes: Sequence[Training]) -> Iterator[Finding]:
    """Judge what passes between a rank's last gradient and the end of its reduction."""
    ranks = [rank for node in nodes for rank in node.timing.ranks]
    step_s = find_step(ranks)
    least = min(nodes, key=lambda node: node.timing.exposed_s or 0.0).timing
    computing_s = min((rank.computing_s for rank in ranks if rank.computing_s is not None), default=0.0)
    reductions = median(node.timing.reductions for node in nodes)
    # Iterations that were measured may be slower than usual ones.
    exposed_s = (least.exposed_s or 0.0) * reductions
    exposed_s = min(exposed_s, min(rank.spend(BACKWARD) for rank in ranks))
    size = least.gradient_bytes
    if step_s < BOUND_S or size < BOUND_BYTES or exposed_s < BOUND_SHARE * step_s:
        return
    yield _tell_bound(evidence, step_s, exposed_s, computing_s, least.reduction_s or 0.0, size)


def _tell_bound(
    evidence: Evidence, step_s: float, exposed_s: float, computing_s: float, reduction_s: float, size: int
) -> Finding:
    who = RankSet(rank.rank for rank in list_times(evidence))
    count = max((len(each.group) for each in list_wrappers(evidence)), default=0) or len(who)
    speed = 2 * (count - 1) / count * size / reduction_s / 1e9 if reduction_s and count > 1 else 0.0
    hidden = reduction_s <= computing_s
    allowed = (
        "as long as the backward pass, which could overlap with it"
        if hidden
        else (
            f"at this bandwidth the backward pass of {name_time(computing_s)} can overlap with no more "
            "than that much of it"
        )
    )
    return Finding(
        message=(
            f"{exposed_s / step_s:.0%} of each step is exposed communication: {name_time(exposed_s)} of "
            f"{name_time(step_s)}, even on the last rank to arrive. A reduction carries "
            f"{format_bytes(size)}."
        ),
        ranks=who,
        where=in_line(find_step_line(evidence), who, "noticed"),
        evidence=(
            EvidenceItem(
                "reduction",
                f"{name_time(reduction_s)} for {format_bytes(size)} on {count_of(count, 'rank')}: {speed:.2g} GB/s "
                f"of bus bandwidth; {allowed}",
            ),
            EvidenceItem("times", break_down(list_times(evidence)), who),
        ),
        fix=(
            Fix("try smaller buckets", code="DistributedDataParallel(model, bucket_cap_mb=5)")
            if hidden
            else Fix(
                (
                    "reduce once for several micro-batches, with forward and backward pass of all but the "
                    "last under no_sync()"
                ),
                code="with model.no_sync():\n    (criterion(model(x), y) / accumulate).backward()",
            ),
            Fix(
                "send half as many bytes",
                code="from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
                "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
            ),
            _MEASURE,
        ),
        details={
            "share": round(exposed_s / step_s, 3),
            "exposed_s": exposed_s,
            "step_s": round(step_s, 6),
            "reduction_s": reduction_s,
            "gradient_bytes": size,
            "bus_bandwidth": speed,
        },
        role="advice",
    )


def _judge_shards(evidence: Evidence, shards: ShardTimes) -> Iterator[Finding]:
    """Judge what fully_shard's collectives take of a step on the last rank to arrive."""
    exposed_s = shards.gather_s + shards.reduce_s
    if (
        shards.step_s < BOUND_S
        or shards.gathered_bytes < BOUND_BYTES
        or exposed_s < BOUND_SHARE * shards.step_s
    ):
        return
    who = RankSet(rank.rank for rank in list_times(evidence))
    items = [
        EvidenceItem(
            "all-gathers",
            f"{format_bytes(shards.gathered_bytes)} of parameters are gathered in a step; steps wait "
            f"{name_time(shards.gather_s)} for them, and {name_time(shards.reduce_s)} for the reduce-scatters of their "
            "gradients",
        )
    ]
    if len(shards.modules) > 1:
        named = (f"{name or 'the model itself'} {name_time(took)}" for name, took in shards.modules[:4])
        items.append(EvidenceItem("modules", f"waited for most in a step: {', '.join(named)}"))
    yield Finding(
        message=(
            f"{exposed_s / shards.step_s:.0%} of each step is exposed communication of fully_shard: "
            f"{name_time(exposed_s)} of {name_time(shards.step_s)}, even on the last rank to arrive."
        ),
        ranks=who,
        where=in_line(find_step_line(evidence), who, "noticed"),
        evidence=tuple(items),
        fix=(
            Fix(
                "keep parameters gathered from the forward pass to the backward pass, where memory allows",
                code="fully_shard(layer, reshard_after_forward=False)",
            ),
            Fix(
                "reduce once for several micro-batches",
                code="model.set_requires_gradient_sync(last_micro_batch)",
            ),
            Fix(
                "send half as many bytes",
                code="fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))",
            ),
            Fix(
                "issue the next all-gather earlier, where Python is slower than the GPU",
                code="layers[i].set_modules_to_forward_prefetch([layers[i + 1]])",
            ),
            _MEASURE,
        ),
        details={
            "share": round(exposed_s / shards.step_s, 3),
            "exposed_s": round(exposed_s, 6),
            "step_s": shards.step_s,
            "gather_s": shards.gather_s,
            "reduce_s": shards.reduce_s,
            "gathered_bytes": shards.gathered_bytes,
        },
        role="advice",
    )
