"""Made-up but realistic reports, for tests and for looking at the renderings.

Each function returns a whole `Report`. Nothing here is read by the program itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ddpdoctor.evidence import (
    Absent,
    BackendResult,
    BandwidthRow,
    Baseline,
    CollectiveCase,
    Cpus,
    Device,
    Evidence,
    Experiment,
    Frame,
    Launch,
    Link,
    ModelResult,
    NodeFacts,
    RankError,
    RankExit,
    RankFacts,
    RankMessage,
    RankSet,
    StackClass,
    StageRecord,
    UnusedParameter,
    UserError,
)
from ddpdoctor.judge import CheckRow, EvidenceItem, Finding, Fix, Verdict, Where
from ddpdoctor.report import Job, Report, World
from tests.report.extremes import sample_hostile
from tests.report.parts import (
    FAMILIES,
    make_bandwidth,
    make_node,
    make_pairs,
    make_rank,
    make_report,
    make_results,
    make_rows,
    make_stages,
    make_verdict,
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
        **make_results(everyone),
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
    headline = f"healthy · {looked} of {len(rows)} checks ran · {ranks} ranks on 1 node, gloo, torch 2.13.0"
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
                    "reason": "ddp was stopped",
                    "duration_s": None,
                    "started_s": None,
                },
            },
        ),
        errors=(RankError(0, "ddp", "RuntimeError", "Connection closed by peer [127.0.0.1]:41231", waiting),),
        exits=(RankExit(3, 4103, "ddp", signal=9, detail="Killed"),),
        backends=(BackendResult("gloo", True, "cpu", failures=(RankMessage(RankSet([1]), "no address"),)),),
        experiments=(
            Experiment(
                "gradient-mean", RankSet([0]), (RankMessage(RankSet([1]), "cut at 30 s"),), tensor="fc.weight"
            ),
        ),
        collectives=(
            CollectiveCase(
                "reduce", "gloo", "int64", 3, "sum", failures=(RankMessage(RankSet([2]), "3 is not 6"),)
            ),
        ),
        model=(
            ModelResult(
                "models.factory:build",
                RankSet.span(4),
                1_204_224,
                4_816_896,
                1_204_224,
                buckets=2,
                unused=(
                    UnusedParameter("head.aux.weight", "head.aux", "Linear", False, RankSet.span(4), 4096),
                ),
                find_unused_needed=True,
                steps=3,
                step_s=0.021,
                step_s_with_search=0.0232,
                errors=(
                    UserError(
                        "raised",
                        "forward",
                        "mat1 and mat2 shapes cannot be multiplied",
                        "RuntimeError",
                        "models/factory.py",
                        71,
                        "forward",
                        "return self.head(x)",
                        RankSet([1]),
                    ),
                ),
            ),
        ),
        absent={
            "bandwidth": Absent("ddp was stopped at its limit"),
            "pairs": Absent("ddp was stopped at its limit"),
        },
    )
    cause = Finding(
        code="BKD011",
        name="stage-timed-out",
        severity="error",
        message=(
            "Ranks 2 and 3 wait in all_reduce (models/factory.py:88); rank 1 never issued it: for 30 s it "
            "has been in read_shard (models/reader.py:61)."
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
            "ddp.replicas.equal": ("unknown", "ddp was stopped at its limit"),
            "ddp.no_sync": ("unknown", "ddp was stopped at its limit"),
            "ddp.checkpoint.restored": ("error", "ddpdoctor: KeyError: 'weights'"),
            "prf.bandwidth.expected": ("unknown", "ddp was stopped at its limit"),
            "prf.link.even": ("unknown", "ddp was stopped at its limit"),
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


def sample_unknown() -> Report:
    """Nothing could be looked at; everything that may be null is null."""
    rows = tuple(
        CheckRow(name, ("NET001",), family, "unknown", "facts was stopped at its limit", 0.0, "ddpdoctor")
        for family, names in FAMILIES.items()
        for name in names
    )
    evidence = Evidence(launch=Launch(), absent={kind: Absent("no check ran") for kind in ("nodes", "ranks")})
    return Report(
        version="0.1.0",
        command="check",
        invocation=(),
        started_at="2026-11-20T14:15:03.000000Z",
        duration_s=0.4,
        verdict=Verdict("unknown", f"not enough evidence; 0 of {len(rows)} checks ran", None, 0, len(rows)),
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


SAMPLES: dict[str, Callable[[], Report]] = {
    "healthy": sample_healthy,
    "problems": sample_problems,
    "nodes": sample_nodes,
    "hostile": sample_hostile,
    "unknown": sample_unknown,
    "error": sample_error,
}
"""The small ones, by name."""
