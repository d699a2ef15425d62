"""The level of each collective's bandwidth, and the contents of the sweep's buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import BandwidthRow, Evidence, RankSet, encode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.bandwidth.expectation import Expectation, expect_bandwidth
from ddpdoctor_checks.common.rank_devices import GPU_BACKENDS
from ddpdoctor_checks.common.stage_evidence import explain_missing
from ddpdoctor_checks.common.wording import format_bytes, join_words

ALARM = 0.5
"""Only below half of what is expected at least is it reported: the expectations themselves are within a
factor of two of what was measured on machines where nothing was wrong."""

PLATEAU = 4
"""Sizes from a quarter of the largest on count as the plateau (nccl-tests sweeps in factors of two)."""

LEAST_BYTES = {"cpu": 1 << 20, "gpu": 16 << 20}
"""Largest size that a sweep must have reached: below, latency and not bandwidth is measured (nccl-tests'
doc/PERFORMANCE.md: "at large sizes"). gloo's plateau begins at about 1 MiB, NCCL's over NVLink at 16-64
MiB."""

RISING = 1.25
"""A bandwidth that grew by a quarter in the last step of the sweep has not reached its plateau."""

SLOWING = (
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MAX_NCHANNELS",
)
"""Variables that cost bandwidth where they are left set (NCCL user guide, "Environment Variables")."""


@check(
    "PRF001",
    family="bandwidth",
    needs=("bandwidth",),
    variants={f"bw.{op}.expected": op for op in ("all_reduce", "others")},
    required=False,
)
def find_bandwidth_low(evidence: Evidence, *, variant: str) -> Iterable[Finding]:
    """A collective moves far fewer bytes per second than this hardware can."""
    if not evidence.bandwidth:
        raise explain_missing(evidence, "bandwidth", variant)
    rows = [row for row in evidence.bandwidth if (row.op == "all_reduce") == (variant == "all_reduce")]
    if not rows:
        raise NotApplicable("not in this sweep (--full or --collectives)")
    if all(row.ranks < 2 for row in rows):
        raise NotApplicable("one rank: nothing is sent")
    blind: list[str] = []
    names = sorted({row.op for row in rows})
    for op in names:
        try:
            yield from _judge(evidence, op, [row for row in rows if row.op == op])
        except CannotLook as why:
            blind.append(str(why))
    if len(blind) == len(names):
        raise CannotLook(blind[0])


def _judge(evidence: Evidence, op: str, rows: Sequence[BandwidthRow]) -> Iterable[Finding]:
    """Judge one operation.

    Raises:
        CannotLook: too little is known of the hardware, or the sweep does not show a plateau.
    """
    most = max(row.ranks for row in rows)
    rows = sorted((row for row in rows if row.ranks == most), key=lambda row: row.bytes)
    largest = rows[-1]
    least = LEAST_BYTES["gpu" if largest.backend in GPU_BACKENDS else "cpu"]
    if largest.bytes < least:
        raise CannotLook(f"the sweep of {op} ended at {format_bytes(largest.bytes)}: too small for a plateau")
    plateau = [row for row in rows if row.bytes * PLATEAU >= largest.bytes]
    top = max(plateau, key=lambda row: row.busbw)
    best = max(row.busbw_max for row in plateau)
    expected = expect_bandwidth(evidence, op, most)
    if best >= expected.low * ALARM:
        return
    before = [row for row in rows if row.bytes < largest.bytes]
    if before and largest.busbw > RISING * before[-1].busbw:
        raise CannotLook(f"{op} was still rising at {format_bytes(largest.bytes)}; --full sweeps further")
    yield _low(evidence, top, best, expected, rows)


def _low(
    evidence: Evidence, top: BandwidthRow, best: float, expected: Expectation, rows: Sequence[BandwidthRow]
) -> Finding:
    band = f"{expected.low:.2g} to {expected.high:.2g} GB/s"
    return Finding(
        message=(
            f"{top.op} with {top.backend} reaches {top.busbw:.2g} GB/s (bus) at {format_bytes(top.bytes)} "
            f"across {top.ranks:,} ranks; {band} are expected: {expected.reason}."
        ),
        ranks=RankSet.span(top.ranks),
        evidence=tuple(
            EvidenceItem(
                "bandwidth",
                f"{row.op} {format_bytes(row.bytes)}: {row.busbw:.3g} GB/s bus "
                f"({row.busbw_min:.3g} to {row.busbw_max:.3g} over {row.iterations} iterations)",
            )
            for row in rows[-4:]
        ),
        fix=tuple(_fixes(evidence, top)),
        details=encode(
            {
                "op": top.op,
                "bytes": top.bytes,
                "measured": top.busbw,
                "best_iteration": best,
                "expected_low": expected.low,
                "expected_high": expected.high,
                "reason": expected.reason,
            }
        ),
        confidence="medium",
    )


def _fixes(evidence: Evidence, row: BandwidthRow) -> Iterable[Fix]:
    left = sorted(
        {name for facts in evidence.ranks for name in SLOWING if facts.variables.get(name) not in (None, "0")}
    )
    if left:
        yield Fix(
            f"{join_words(left)} costs bandwidth: unset it and compare", command=f"unset {' '.join(left)}"
        )
    if row.backend == "nccl":
        yield Fix(
            (
                "check which transport NCCL selects: `via NET/Socket` or `via SHM` where NVLink or "
                "InfiniBand is present is wrong"
            ),
            command="NCCL_DEBUG=INFO ddpdoctor check --only facts,rendezvous,bandwidth | grep -E 'via|NET/'",
        )
    elif evidence.launch.nnodes > 1:
        yield Fix(
            "check the negotiated speed and traffic shaping of the interface on each node",
            command="grep . /sys/class/net/*/speed; tc qdisc show",
        )
    else:
        yield Fix(
            "check for other load and for a CPU limit of the container",
            command="uptime; nproc; cat /sys/fs/cgroup/cpu.max 2>/dev/null",
        )
    yield Fix("measure longer to confirm", command=f"ddpdoctor check --full --collectives {row.op}")


@check("COL001", family="bandwidth", needs=("bandwidth",), id="bw.contents.exact")
def find_contents_wrong(evidence: Evidence) -> Iterable[Finding]:
    """The buffers of the bandwidth sweep held the right values after each operation."""
    if not evidence.bandwidth:
        raise explain_missing(evidence, "bandwidth", "the sweep's buffers")
    wrong = [row for row in evidence.bandwidth if not row.correct]
    if not wrong:
        return
    first = wrong[0]
    texts = [f"{row.op} of {format_bytes(row.bytes)} ({row.dtype})" for row in wrong]
    yield Finding(
        message=(
            f"In the bandwidth sweep {join_words(texts, few=3)} with {first.backend} left incorrect values "
            f"in the buffers of {first.ranks:,} ranks."
        ),
        ranks=RankSet.span(first.ranks),
        evidence=tuple(EvidenceItem("bandwidth", f"{text}: incorrect contents") for text in texts[:8]),
        fix=(
            Fix(
                "check whether the small cases are exact",
                command="ddpdoctor check --only facts,smoke,rendezvous,collectives -v",
            ),
            Fix(
                "with NCCL, check whether it disappears without peer-to-peer copies (then it is BKD007)",
                command="NCCL_P2P_DISABLE=1 ddpdoctor check --only facts,rendezvous,bandwidth "
                f"--collectives {first.op}",
            ),
        ),
        details=encode(
            {"rows": [{"op": row.op, "bytes": row.bytes, "dtype": row.dtype} for row in wrong[:50]]}
        ),
    )
