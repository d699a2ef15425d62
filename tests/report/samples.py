"""Made-up but realistic reports, for tests and for looking at the renderings.

Each function returns a whole `Report`. Nothing here is read by the program itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ddpdoctor.evidence import (
    STAGES,
    Absent,
    BackendResult,
    BandwidthRow,
    Baseline,
    Cpus,
    Device,
    Evidence,
    Frame,
    Interface,
    Launch,
    Limits,
    Link,
    NodeFacts,
    PairRow,
    RankError,
    RankExit,
    RankFacts,
    RankSet,
    SharedMemory,
    StackClass,
    StageRecord,
)
from ddpdoctor.judge import CheckRow, CodePage, EvidenceItem, Finding, Fix, Verdict, Where
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

What it looks for:
    Each pair of nodes in both directions, on ports that the kernel chose.

    * one attempt per pair and direction,
    * with a limit of 3 seconds.

Why it matters:
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
    return CodePage(code, name, title, severity, text, "0.1", "ddpdoctor")


PAGES = {
    page.code: page
    for page in (
        make_page("NET005", "port-range-blocked", "ephemeral ports between some nodes are blocked"),
        make_page("ENV004", "variables-differ", "a variable that must agree over ranks does not", "warning"),
        make_page("BKD011", "stage-timed-out", "a stage was cut at its limit"),
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
    for stage, duration in zip(STAGES, durations, strict=True):
        for node in range(nodes):
            fields: dict[str, object] = {
                "status": "passed",
                "started_s": round(start, 3),
                "duration_s": duration,
                "limit_s": 30.0,
                "finished": ranks or RankSet(),
                **(changes or {}).get(stage, {}),
            }
            records.append(StageRecord(node=node, stage=stage, **fields))  # type: ignore[arg-type] # made-up fields
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
    fields: dict[str, object] = {
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
    return NodeFacts(node=number, host=host, **fields)  # type: ignore[arg-type] # made-up fields


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


def sample_healthy(ranks: int = 4) -> Report:
    """A laptop, all well, one note."""
    everyone = RankSet.span(ranks)
    node = make_node(0, "workstation", cpus=Cpus(8, 2, 2.0), memory_limit=16 << 30, advertised_interface="lo")
    evidence = Evidence(
        launch=Launch(nproc=ranks, world_size=ranks, master_addr="127.0.0.1", master_port=41231),
        nodes=(node,),
        ranks=tuple(make_rank(rank, ranks, "workstation", ranks) for rank in range(ranks)),
        stages=make_stages(ranks=everyone),
        backends=(BackendResult("gloo", True, "cpu", asked=True, group=everyone, collective=everyone),),
        bandwidth=make_bandwidth(ranks, ops=("all_reduce", "all_gather", "reduce_scatter", "broadcast")),
        pairs=make_pairs(ranks, "rank"),
        baselines=(Baseline(0, "loopback-copy", 4.4, "TCP over lo, 1 MiB"), Baseline(0, "memory-copy", 11.2)),
        absent={"model": Absent("no --model was given", False)},
    )
    rows = make_rows(
        {
            "bkd.device.shared": ("skipped", "no GPU"),
            "bkd.device.range": ("skipped", "no GPU"),
            "net.link.ephemeral": ("skipped", "single node"),
        }
    )
    note = Finding(
        code="ENV011",
        name="threads-oversubscribed",
        severity="info",
        role="advice",
        message=f"{ranks} ranks x 2 threads run on 2 cores.",
        fix=(Fix("Give each rank one thread for real runs of this size.", "export OMP_NUM_THREADS=1"),),
        details={"cores": 2, "product": ranks * 2},
    )
    looked = sum(row.status == "pass" for row in rows)
    headline = (
        f"healthy · {looked} of {len(rows)} checks could look · {ranks} ranks on 1 node, gloo, torch 2.13.0"
    )
    return make_report(
        evidence, verdict=make_verdict("healthy", headline, None, rows), rows=rows, findings=(note,)
    )


def sample_problems() -> Report:
    """One node, a stage that hung, with stacks; the cause is a line of the user's model."""
    frames = (
        Frame("models/reader.py", 61, "read_shard"),
        Frame("models/factory.py", 34, "build"),
        Frame("torch/nn/modules/module.py", 1751, "_call_impl"),
    )
    waiting = (
        Frame("torch/distributed/distributed_c10d.py", 2810, "all_reduce"),
        Frame("models/factory.py", 88, "step"),
    )
    evidence = Evidence(
        launch=Launch(nproc=4, world_size=4, model="models.factory:build"),
        nodes=(make_node(0, "workstation", tracing="ptrace_scope is 2: only root may trace"),),
        ranks=tuple(make_rank(rank, 4, "workstation", 4) for rank in range(4)),
        stages=make_stages(
            ranks=RankSet.span(4),
            changes={
                "ddp": {
                    "status": "cut",
                    "duration_s": 30.0,
                    "reason": "1 rank still ran at the limit of 30 s",
                    "finished": RankSet([0]),
                    "unfinished": RankSet([1, 2, 3]),
                    "stacks": (StackClass(RankSet([1]), frames), StackClass(RankSet([2, 3]), waiting)),
                },
                "bandwidth": {
                    "status": "unreached",
                    "reason": "ddp was cut",
                    "duration_s": None,
                    "started_s": None,
                },
            },
        ),
        errors=(RankError(0, "ddp", "RuntimeError", "Connection closed by peer [127.0.0.1]:41231", waiting),),
        exits=(RankExit(3, 4103, "ddp", signal=9, detail="Killed"),),
        absent={"bandwidth": Absent("ddp was cut at its limit"), "pairs": Absent("ddp was cut at its limit")},
    )
    cause = Finding(
        code="BKD011",
        name="stage-timed-out",
        severity="error",
        message=(
            "Ranks 2 and 3 wait in all_reduce (models/factory.py:88); rank 1 never called it: "
            "for 30 s it has been in read_shard (models/reader.py:61)."
        ),
        ranks=RankSet([1]),
        victims=RankSet([0, 2, 3]),
        where=(
            Where(RankSet([1]), "culprit", "models/reader.py", 61, "read_shard", "rows = sock.recv(1 << 20)"),
            Where(RankSet([2, 3]), "victim", "models/factory.py", 88, "step", "dist.all_reduce(loss)"),
            Where(RankSet([1]), "caller", "models/factory.py", 34, "build", 'if rank == 1: read_shard("s3")'),
        ),
        evidence=(
            EvidenceItem("stacks", "taken twice, 1 s apart, with py-spy; both equal", RankSet.span(4)),
            EvidenceItem(
                "log",
                "File models/reader.py, line 61, in read_shard\n"
                "    rows = sock.recv(1 << 20)\n"
                "TimeoutError: no answer",
                RankSet([1]),
                ("rank1.err", 42),
            ),
        ),
        fix=(
            Fix("Give the socket a time-out, so that a silent server shows.", code="sock.settimeout(10)"),
            Fix(
                "Look again with more time.",
                "ddpdoctor check --nproc 4 --model models.factory:build --timeout 300",
            ),
        ),
        details={"stage": "ddp", "limit_s": 30.0, "waiting": {"all_reduce": "2-3"}},
    )
    differs = Finding(
        code="ENV004",
        name="variables-differ",
        severity="warning",
        confidence="medium",
        role="consequence",
        message="OMP_NUM_THREADS is 4 on rank 1 and 1 on the others.",
        ranks=RankSet([1]),
        evidence=(EvidenceItem("variable", "OMP_NUM_THREADS=4", RankSet([1])),),
        fix=(Fix("Set it once, in the launch script.", "export OMP_NUM_THREADS=1"),),
    )
    rows = make_rows(
        {
            "env.variables.agree": ("fail", "OMP_NUM_THREADS is 4 on rank 1 and 1 on the others."),
            "ddp.gradient.mean": ("fail", cause.message),
            "ddp.replicas.equal": ("unknown", "ddp was cut at its limit"),
            "ddp.no_sync": ("unknown", "ddp was cut at its limit"),
            "ddp.checkpoint.restored": ("error", "ddpdoctor: KeyError: 'weights'"),
            "prf.bandwidth.expected": ("unknown", "ddp was cut at its limit"),
            "prf.link.even": ("unknown", "ddp was cut at its limit"),
        }
    )
    return make_report(
        evidence,
        verdict=make_verdict("problems", cause.message, cause.code, rows),
        rows=rows,
        findings=(cause, differs),
        invocation=("ddpdoctor", "check", "--nproc", "4", "--model", "models.factory:build"),
        job=Job(1, None, "ddpdoctor"),
    )


def sample_nodes(nodes: int = 4, per_node: int = 2) -> Report:
    """Several nodes: a firewall between two of them, one slow link, one variable that differs."""
    hosts = [f"node-{number:04d}" for number in range(nodes)]
    world = nodes * per_node
    device = Device(0, "GPU-1", "NVIDIA H100 80GB HBM3", capability="9.0", memory_total=80 << 30)
    ranks = [
        make_rank(rank, per_node, hosts[rank // per_node], world, "cuda", NCCL_SOCKET_IFNAME="eth0")
        for rank in range(world)
    ]
    odd = make_rank(
        world - 1, per_node, hosts[-1], world, "cuda", NCCL_SOCKET_IFNAME="ib0", NCCL_DEBUG="INFO"
    )
    links = [
        Link(a, b, kind, not (kind == "ephemeral" and {a, b} == {1, 2}), f"10.0.0.{b + 2}", 41000 + b, 0.0003)
        if not (kind == "ephemeral" and {a, b} == {1, 2})
        else Link(a, b, kind, False, f"10.0.0.{b + 2}", 41000 + b, 3.0, "timed out after 3 s")
        for kind in ("rendezvous", "ephemeral")
        for a in range(nodes)
        for b in range(nodes)
        if a != b and (kind == "ephemeral" or b == 0)
    ]
    evidence = Evidence(
        launch=Launch(nnodes=nodes, nproc=per_node, world_size=world, launcher="torchrun", backend="nccl"),
        nodes=tuple(
            make_node(number, host, devices=tuple(device for _ in range(per_node)))
            for number, host in enumerate(hosts)
        ),
        ranks=(*ranks[:-1], odd),
        stages=make_stages(nodes, RankSet.span(world)),
        links=tuple(links),
        bandwidth=make_bandwidth(world, 180.0, ("all_reduce", "all_gather")),
        pairs=make_pairs(nodes, "node", (0, 3), 22.0),
        baselines=tuple(Baseline(n, "memory-copy", 41.0 + n) for n in range(nodes)),
    )
    blocked = Finding(
        code="NET005",
        name="port-range-blocked",
        severity="error",
        message="node-0001 and node-0002 reach the rendezvous port, but no ephemeral port of each other.",
        nodes=("node-0001", "node-0002"),
        pairs=(("node-0001", "node-0002"), ("node-0002", "node-0001")),
        ranks=RankSet(range(per_node, 3 * per_node)),
        victims=RankSet.span(world).minus(RankSet(range(per_node, 3 * per_node))),
        evidence=(EvidenceItem("link", "node-0001 → node-0002 port 41002: timed out after 3 s"),),
        fix=(
            Fix(
                "Let the nodes open connections to each other on the kernel's range 32768-60999.",
                "iptables -I INPUT -p tcp -s 10.0.0.0/16 --dport 32768:60999 -j ACCEPT",
            ),
        ),
        details={
            "range": [32768, 60999],
            "attempts": [
                {"from": "node-0001", "to": "node-0002", "seconds": 3.0},
                {"from": "node-0002", "to": "node-0001", "seconds": 3.0},
            ],
        },
    )
    differs = Finding(
        code="ENV004",
        name="variables-differ",
        severity="warning",
        message=f"NCCL_SOCKET_IFNAME is ib0 on rank {world - 1} and eth0 on the others.",
        ranks=RankSet([world - 1]),
        nodes=(hosts[-1],),
        fix=(Fix("Set it in the launch script of all nodes.", "export NCCL_SOCKET_IFNAME=eth0"),),
    )
    rows = make_rows(
        {
            "net.link.ephemeral": ("fail", blocked.message),
            "env.variables.agree": ("fail", differs.message),
        }
    )
    return make_report(
        evidence,
        verdict=make_verdict("problems", blocked.message, blocked.code, rows),
        rows=rows,
        findings=(blocked, differs),
        invocation=(
            "torchrun",
            "--nnodes",
            str(nodes),
            "--nproc-per-node",
            str(per_node),
            "-m",
            "ddpdoctor",
            "check",
        ),
    )


HOSTILE = (
    '<script>window.HIT=1</script><img src=x onerror="window.HIT=1">',
    "</script><script>window.HIT=1</script>",
    "</style><svg/onload=window.HIT=1>",
    '"><a href="javascript:window.HIT=1">x</a>\'',
    "]]><!-- {{ 7*7 }} {% raw %} -->",
    "line\u2028separator\u2029and\u202eright to left\u202c\x00\x1b[31m\ud800",
    "javascript:window.HIT=1",
    "${window.HIT=1}`;window.HIT=1;//",
)
"""Strings that must come out as text and nothing else."""


def sample_hostile() -> Report:
    """Every place that holds a user's text holds something hostile."""
    bad = "".join(HOSTILE)
    node = NodeFacts(
        node=0,
        host=HOSTILE[0],
        advertised=HOSTILE[3],
        advertised_interface=HOSTILE[2],
        system=bad,
        container=HOSTILE[1],
        name_error=bad,
        devices_note=bad,
        tracing=bad,
        versions={HOSTILE[4]: HOSTILE[1]},
        devices=(Device(0, name=bad),),
    )
    ranks = tuple(
        RankFacts(n, n, 0, HOSTILE[0], 1, 2, {HOSTILE[2]: HOSTILE[n], HOSTILE[1]: bad}, device=HOSTILE[0])
        for n in range(2)
    )
    frame = Frame(HOSTILE[0], 1, HOSTILE[1])
    bandwidth = BandwidthRow(
        HOSTILE[0], HOSTILE[1], HOSTILE[2], 1024, 2, 1, 1e-3, 1e-3, 1e-3, 0.001, 0.001, 0.001, 0.001, True
    )
    evidence = Evidence(
        launch=Launch(command=HOSTILE[0], launcher=bad, world_size=2, nproc=2, backend=HOSTILE[1]),
        nodes=(node,),
        ranks=ranks,
        stages=(
            StageRecord(
                0,
                HOSTILE[0],
                HOSTILE[1],
                bad,
                0.0,
                1.0,
                2.0,
                stacks=(StackClass(RankSet([0]), (frame,), bad),),
            ),
        ),
        errors=(RankError(0, HOSTILE[3], HOSTILE[1], bad, (frame,)),),
        exits=(RankExit(1, 1, None, detail=bad),),
        links=(Link(0, 1, HOSTILE[0], False, HOSTILE[1], 1, error=bad),),
        bandwidth=(bandwidth,),
        pairs=(PairRow(0, 1, HOSTILE[0], 1, 1.0, 1.0), PairRow(1, 0, HOSTILE[0], 1, 1.0, 1.0)),
        baselines=(Baseline(0, HOSTILE[0], 1.0, bad),),
        absent={HOSTILE[0]: Absent(bad)},
    )
    finding = Finding(
        code=HOSTILE[0],
        name=HOSTILE[1],
        severity="error",
        message=bad,
        nodes=HOSTILE,
        pairs=((HOSTILE[0], HOSTILE[1]),),
        where=tuple(Where(RankSet([0]), "culprit", bad, 1, bad, bad, bad) for _ in range(2)),
        evidence=(EvidenceItem(HOSTILE[0], bad, RankSet([0]), (bad, None)), EvidenceItem("log", f"a\n{bad}")),
        fix=(Fix(bad, bad, bad),),
        details={
            HOSTILE[0]: bad,
            "rows": [{HOSTILE[1]: bad}],
            "map": {HOSTILE[2]: bad},
            "list": list(HOSTILE),
        },
    )
    rows = (CheckRow(HOSTILE[0], (HOSTILE[1],), HOSTILE[2], "fail", bad, 0.0, HOSTILE[3]),)
    report = make_report(
        evidence,
        verdict=Verdict("problems", bad, HOSTILE[0], 1, 1),
        rows=rows,
        findings=(finding,),
        invocation=(*HOSTILE, bad),
        interrupted=bad,
    )
    return report


def sample_unknown() -> Report:
    """Nothing could be looked at; everything that may be null is null."""
    rows = tuple(
        CheckRow(name, ("NET001",), family, "unknown", "facts was cut at its limit", 0.0, "ddpdoctor")
        for family, names in FAMILIES.items()
        for name in names
    )
    evidence = Evidence(
        launch=Launch(), absent={kind: Absent("nobody could look") for kind in ("nodes", "ranks")}
    )
    return Report(
        version="0.1.0",
        command="check",
        invocation=(),
        started_at="2026-11-20T14:15:03.000000Z",
        duration_s=0.4,
        verdict=Verdict(
            "unknown", f"too little was seen; 0 of {len(rows)} checks could look", None, 0, len(rows)
        ),
        world=World(0, ()),
        checks=rows,
        findings=(),
        evidence=evidence,
        job=Job(None),
    )


def sample_error() -> Report:
    """ddpdoctor itself failed: every check broke, and measurements hold numbers that are none."""
    rows = tuple(
        CheckRow(row.id, row.codes, row.family, "error", "X-plugin: ValueError: bad", 0.0, "X-plugin")
        for row in make_rows()
    )
    nothing = float("nan")
    evidence = Evidence(
        nodes=(NodeFacts(0, ""),),
        ranks=(RankFacts(0, 0, 0, "", 1, 1),),
        stages=(StageRecord(0, "facts", "failed"),),
        bandwidth=(
            BandwidthRow("all_reduce", "gloo", "float32", 8, 1, 0, nothing, 0.0, math.inf, 0, 0, 0, 0, False),
        ),
        exits=(RankExit(0, 1, "facts"),),
    )
    verdict = Verdict("error", "all checks broke", None, 0, len(rows))
    return make_report(evidence, verdict=verdict, rows=rows, interrupted="SIGTERM")


def sample_large(nodes: int = 2048, per_node: int = 8) -> Report:
    """16,384 ranks: one rank with another variable, one node with an older driver, one slow node."""
    world = nodes * per_node
    hosts = [f"node-{number:04d}" for number in range(nodes)]
    devices = tuple(
        Device(n, None, "NVIDIA H100 80GB HBM3", capability="9.0", memory_total=80 << 30)
        for n in range(per_node)
    )
    versions = {"python": "3.11.2", "torch": "2.13.0", "driver": "550.54"}
    bad = nodes // 3
    everyone = RankSet.span(world)
    evidence = Evidence(
        launch=Launch(nnodes=nodes, nproc=per_node, world_size=world, launcher="srun", backend="nccl"),
        nodes=tuple(
            make_node(
                n, host, devices=devices, versions={**versions, **({"driver": "535.1"} if n == bad else {})}
            )
            for n, host in enumerate(hosts)
        ),
        ranks=tuple(
            make_rank(
                rank,
                per_node,
                hosts[rank // per_node],
                world,
                "cuda",
                SLURM_PROCID=str(rank),
                NCCL_IB_DISABLE="1" if rank == bad * per_node + 3 else "0",
                **({"NCCL_DEBUG": "INFO"} if rank % 2 else {}),
            )
            for rank in range(world)
        ),
        stages=make_stages(nodes, everyone),
        errors=tuple(
            RankError(rank, "bandwidth", "RuntimeError", f"Connection closed by peer {rank % 97}")
            for rank in range(0, world, 16)
        ),
        links=tuple(
            Link(
                a,
                (a + step) % nodes,
                "ephemeral",
                a != bad,
                None,
                40000,
                0.0004,
                None if a != bad else "timed out",
            )
            for a in range(nodes)
            for step in (1, 2, 4)
        ),
        bandwidth=make_bandwidth(world, 210.0, ("all_reduce", "all_gather", "reduce_scatter")),
        pairs=tuple(
            PairRow(a, a ^ 1, "node", 4 << 20, 0.01, 4.0 if bad in (a, a ^ 1) else 22.0 + (a % 7) / 10)
            for a in range(nodes)
        ),
        baselines=tuple(Baseline(n, "memory-copy", 41.0 + n % 5) for n in range(nodes)),
    )
    finding = Finding(
        code="PRF002",
        name="link-slow",
        severity="warning",
        message=f"{hosts[bad]} moves 4 GB/s, its peers 22: a fifth.",
        nodes=(hosts[bad],),
        ranks=RankSet(range(bad * per_node, (bad + 1) * per_node)),
        victims=everyone.minus(RankSet(range(bad * per_node, (bad + 1) * per_node))),
        pairs=tuple((hosts[bad], host) for host in hosts if host != hosts[bad]),
        evidence=tuple(EvidenceItem("pair", f"{hosts[bad]} → {host}: 4 GB/s") for host in hosts),
        fix=(Fix("Look at the node's network card.", f"ssh {hosts[bad]} ethtool eth0"),),
        details={"ratio": 0.18, "ranks": list(range(world)), "peers": hosts},
    )
    rows = make_rows({"prf.link.even": ("fail", finding.message)})
    return make_report(
        evidence,
        verdict=make_verdict("problems", finding.message, finding.code, rows),
        rows=rows,
        findings=(finding,),
        invocation=("srun", "-N", str(nodes), "python", "-m", "ddpdoctor", "check"),
    )


SAMPLES = {
    "healthy": sample_healthy,
    "problems": sample_problems,
    "nodes": sample_nodes,
    "hostile": sample_hostile,
    "unknown": sample_unknown,
    "error": sample_error,
}
"""The small ones, by name."""
