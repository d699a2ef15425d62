"""Parts of made-up reports: rows, nodes, ranks, sweeps; all ordinary unless told otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ddpdoctor.evidence import (
    DEFAULT_STAGES,
    BackendResult,
    BandwidthRow,
    CollectiveCase,
    Cpus,
    Evidence,
    Experiment,
    InitResult,
    Interface,
    Limits,
    NodeFacts,
    PairRow,
    RankFacts,
    RankSet,
    SharedMemory,
    StageRecord,
)
from ddpdoctor.judge import CheckRow, CodePage, Finding, Verdict
from ddpdoctor.judge.catalogue import read_docstring
from ddpdoctor.report import Job, Node, Report, World

FAMILIES = {
    "network": (
        "net.name.master",
        "net.port.free",
        "net.link.rendezvous",
        "net.link.ephemeral",
        "net.host.match",
    ),
    "environment": (
        "env.rank.variables",
        "env.variables.agree",
        "env.versions.agree",
        "env.shm.size",
        "env.threads",
    ),
    "backends": ("bkd.gloo.forms", "bkd.device.shared", "bkd.device.range"),
    "collectives": (
        "col.all_reduce.exact",
        "col.broadcast.exact",
        "col.all_gather.exact",
        "col.barrier.passes",
    ),
    "ddp": ("ddp.gradient.mean", "ddp.replicas.equal", "ddp.no_sync", "ddp.checkpoint.restored"),
    "bandwidth": ("prf.bandwidth.expected", "prf.link.even"),
}


CODES = {
    "net.link.ephemeral": "NET005",
    "env.variables.agree": "ENV004",
    "env.threads": "ENV011",
    "bkd.device.shared": "BKD003",
    "prf.link.even": "PRF002",
}


def make_page(code: str, name: str, title: str, severity: str = "error") -> CodePage:
    """Return a page such as the docstrings of the checks make."""
    text = f"""What {name} means, in one paragraph of `plain` text.

Symptoms:
    Each pair of nodes in both directions, on ports that the kernel chose.

    * one attempt per pair and direction,
    * with a limit of 3 seconds.

What it means:
    Backends open connections on such ports after the rendezvous.

How it decides:
    At least one attempt failed while the rendezvous port answered.

Known false alarms:
    None.

Fix:
    Open the range:

        sysctl net.ipv4.ip_local_port_range

References:
    https://pytorch.org/docs/stable/distributed.html and ``torch.distributed``.
"""
    return CodePage(code, name, title, severity, read_docstring(text), "0.1", "ddpdoctor")


PAGES = {
    page.code: page
    for page in (
        make_page("NET005", "port-range-blocked", "ephemeral ports between some nodes are blocked"),
        make_page("ENV004", "variables-differ", "a variable that must agree over ranks does not", "warning"),
        make_page("BKD011", "stage-timed-out", "a stage was stopped at its limit"),
    )
}


def make_rows(changes: dict[str, tuple[str, str | None]] | None = None) -> tuple[CheckRow, ...]:
    """Return one row per made-up check, all passed but for ``changes`` (id -> status and reason)."""
    rows = []
    for family, names in FAMILIES.items():
        for name in names:
            status, reason = (changes or {}).get(name, ("pass", None))
            code = CODES.get(name, "COL001" if family == "collectives" else "NET001")
            rows.append(CheckRow(name, (code,), family, status, reason, 0.0004, "ddpdoctor"))
    return tuple(rows)


def make_verdict(status: str, headline: str, code: str | None, rows: tuple[CheckRow, ...]) -> Verdict:
    """Return a verdict whose counts are those of ``rows``."""
    return Verdict(status, headline, code, sum(row.status in ("pass", "fail") for row in rows), len(rows))


def make_stages(
    nodes: int = 1, ranks: RankSet | None = None, changes: dict[str, dict[str, object]] | None = None
) -> tuple[StageRecord, ...]:
    """Return one record per stage and node; ``changes`` replaces fields of a stage."""
    durations = (0.09, 0.12, 0.03, 0.41, 0.16, 0.52, 0.61, 0.83)
    records = []
    start = 0.02
    for stage, duration in zip(DEFAULT_STAGES, durations, strict=True):
        for node in range(nodes):
            fields: dict[str, Any] = {
                "status": "passed",
                "started_s": round(start, 3),
                "duration_s": duration,
                "limit_s": 30.0,
                "finished": ranks or RankSet(),
                **(changes or {}).get(stage, {}),
            }
            records.append(StageRecord(node=node, stage=stage, **fields))
        start += duration
    return tuple(records)


def make_bandwidth(
    ranks: int, peak: float = 1.25, ops: Iterable[str] = ("all_reduce",)
) -> tuple[BandwidthRow, ...]:
    """Return a sweep from 1 KiB to 64 MiB per operation: latency first, then a plateau."""
    rows = []
    factors = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0}
    for order, op in enumerate(ops):
        factor = factors.get(op, (ranks - 1) / ranks)
        for power in range(10, 27, 2):
            size = 2**power
            seconds = 58e-6 * (1 + 0.2 * order) + factor * size / (peak * 1e9 * (1 - 0.12 * order))
            fast, slow = seconds * 0.9, seconds * (1.55 if power < 16 else 1.22)
            gigabytes = size / 1e9
            rows.append(
                BandwidthRow(
                    op=op,
                    backend="gloo",
                    dtype="float32",
                    bytes=size,
                    ranks=ranks,
                    iterations=20 if power < 20 else 5,
                    seconds=seconds,
                    seconds_min=fast,
                    seconds_max=slow,
                    algbw=gigabytes / seconds,
                    busbw=factor * gigabytes / seconds,
                    busbw_min=factor * gigabytes / slow,
                    busbw_max=factor * gigabytes / fast,
                    correct=True,
                )
            )
    return tuple(rows)


def make_results(ranks: RankSet, backend: str = "gloo") -> dict[str, Any]:
    """Return what a healthy tiny world tried, as keywords of `Evidence`."""
    operations = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all", "send_recv")
    cases = tuple(
        CollectiveCase(op, backend, dtype, size, "sum" if "reduce" in op else None, passed=ranks)
        if (op, dtype) != ("all_to_all", "bfloat16")
        else CollectiveCase(op, backend, dtype, size, unsupported="all_to_all has no bfloat16 here")
        for op in operations
        for dtype in ("float32", "bfloat16", "int64")
        for size in (1, 17, 1031)
    )
    names = ("gradient-mean", "replicas-equal", "autocast", "no-sync", "checkpoint")
    return {
        "backends": (
            BackendResult(backend, True, "cpu", asked=True, group=ranks, collective=ranks),
            BackendResult("mpi", False, device_present=False),
        ),
        "collectives": (*cases, CollectiveCase("barrier", backend, "none", 0, None, "sub-group", ranks)),
        "initialisations": (InitResult("env", ranks), InitResult("tcp", ranks), InitResult("file", ranks)),
        "experiments": (
            *(Experiment(name, ranks, largest_difference=0.0) for name in names),
            Experiment("grad-scaler", skipped="no GPU"),
        ),
    }


def make_pairs(
    count: int, level: str, slow: tuple[int, int] | None = None, speed: float = 1.1
) -> tuple[PairRow, ...]:
    """Return every ordered pair with a spread of some percent; ``slow`` gets a fifth of the speed."""
    rows = []
    for a in range(count):
        for b in range(count):
            if a != b:
                value = speed * (1 + 0.06 * math.sin(7 * a + 3 * b))
                if slow is not None and {a, b} == set(slow):
                    value *= 0.2
                rows.append(PairRow(a, b, level, 4 << 20, (4 << 20) / (value * 1e9), value))
    return tuple(rows)


def make_node(number: int, host: str, **changes: object) -> NodeFacts:
    """Return the facts of one ordinary node."""
    fields: dict[str, Any] = {
        "fqdn": f"{host}.cluster.local",
        "name_addresses": (f"10.0.{number // 250}.{number % 250 + 2}",),
        "advertised": f"10.0.{number // 250}.{number % 250 + 2}",
        "advertised_interface": "eth0",
        "interfaces": (
            Interface("lo", ("127.0.0.1",), loopback=True, mtu=65536),
            Interface("eth0", (f"10.0.{number // 250}.{number % 250 + 2}",), mtu=1500, speed_mbps=25000),
        ),
        "ephemeral_ports": (32768, 60999),
        "cpus": Cpus(96, 96),
        "memory_total": 768 << 30,
        "shared_memory": SharedMemory(384 << 30, 383 << 30),
        "limits": Limits(1048576, 1048576, None),
        "system": "Linux 6.1.0 x86_64, Debian 12",
        "versions": {"python": "3.11.2", "torch": "2.13.0", "ddpdoctor": "0.1.0"},
        "clock_offset_s": 0.0004 * number if number else None,
        **changes,
    }
    return NodeFacts(node=number, host=host, **fields)


def make_rank(
    rank: int, per_node: int, host: str, world: int, device: str = "cpu", **extra: str
) -> RankFacts:
    """Return one ordinary rank; ``extra`` are further variables."""
    node, local = divmod(rank, per_node)
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": "node-0000" if world > per_node else "127.0.0.1",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "eth0",
        **extra,
    }
    name = f"cuda:{local}" if device == "cuda" else device
    return RankFacts(
        rank=rank,
        local_rank=local,
        node=node,
        host=host,
        pid=4100 + rank,
        world_size=world,
        variables=variables,
        device=name,
        device_uuid=f"GPU-{node:04x}-{local:04x}" if device == "cuda" else None,
        visible_devices=per_node if device == "cuda" else 0,
        threads=1,
        versions={"torch": "2.13.0"},
    )


def make_report(
    evidence: Evidence,
    *,
    verdict: Verdict,
    rows: tuple[CheckRow, ...],
    findings: tuple[Finding, ...] = (),
    invocation: tuple[str, ...] = ("ddpdoctor", "check", "--nproc", "4"),
    job: Job | None = None,
    interrupted: str | None = None,
) -> Report:
    """Return a report over ``evidence`` with a world that fits it."""
    launch = evidence.launch
    members: dict[int, list[int]] = {}
    for rank in evidence.ranks:
        members.setdefault(rank.node, []).append(rank.rank)
    nodes = tuple(
        Node(
            node.host,
            RankSet(members.get(node.node, ())),
            tuple(f"{d.kind}:{d.index} {d.name or ''}".strip() for d in node.devices),
            {"node": node.node, "system": node.system},
        )
        for node in evidence.nodes
    )
    timings = {record.stage: record.duration_s or 0.0 for record in evidence.stages if record.node == 0}
    total = round(sum(timings.values()) + 0.06, 6)
    return Report(
        version="0.1.0",
        command=launch.command,
        invocation=invocation,
        started_at="2026-11-20T14:15:03.123456Z",
        duration_s=total,
        verdict=verdict,
        world=World(launch.world_size, nodes, launch.backend, "2.13.0", "3.11.2", launch.launcher),
        checks=rows,
        findings=findings,
        evidence=evidence,
        timings={**timings, "judge": 0.011},
        job=job,
        interrupted=interrupted,
    )
