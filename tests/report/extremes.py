"""Made-up reports at the edge: hostile text everywhere, and 16,384 ranks."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import (
    Absent,
    BackendResult,
    BandwidthRow,
    Baseline,
    CollectiveCase,
    Device,
    Evidence,
    Experiment,
    Frame,
    InitResult,
    Launch,
    Link,
    ModelResult,
    NodeFacts,
    PairRow,
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
from ddpdoctor.judge.finding import Suppression
from ddpdoctor.judge.suppression import Remark
from ddpdoctor.report import Report
from tests.report.parts import (
    make_bandwidth,
    make_node,
    make_rank,
    make_report,
    make_rows,
    make_stages,
    make_verdict,
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
        backends=(
            BackendResult(
                bad, True, bad, failures=(RankMessage(RankSet([0]), bad),), reason=bad, version=bad
            ),
        ),
        collectives=(CollectiveCase(bad, bad, bad, 1, bad, bad, failures=(RankMessage(RankSet([0]), bad),)),),
        initialisations=(InitResult(bad, skipped=bad),),
        experiments=(Experiment(bad, failures=(RankMessage(RankSet([0]), bad),), tensor=bad),),
        model=(
            ModelResult(
                bad,
                unused=(UnusedParameter(bad, bad, bad, True),),
                errors=(UserError(bad, bad, bad, bad, bad, 1, bad, bad),),
            ),
        ),
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


def sample_still() -> Report:
    """A job that stands still, of which nobody can be named, as `attach` saw it."""
    reason = "ranks 0-1 wait in all_reduce"
    row = CheckRow("hangs.progress", ("COL009",), "hangs", "unknown", reason, 0.0, "ddpdoctor")
    verdict = Verdict(
        "unknown", f"not enough evidence: hangs.progress is inconclusive ({reason})", None, 0, 1
    )
    evidence = Evidence(launch=Launch("attach", nproc=2, world_size=2, backend="none"))
    return make_report(
        evidence, verdict=verdict, rows=(row,), findings=(), invocation=("ddpdoctor", "attach")
    )


def sample_suppressed() -> Report:
    """Findings that the user has told not to count, and a comment that hides nothing."""
    report = sample_many(3)
    by = (Suppression("comment", "on purpose *x*", 3), Suppression("baseline"), Suppression("baseline"))
    findings = tuple(
        replace(each, state="suppressed", suppression=why)
        for each, why in zip(report.findings, by, strict=True)
    )
    remarks = (
        Remark("ignore[COL002] suppresses nothing; remove it", "src/a.py", 7),
        Remark("ignore[COL003] suppresses nothing; remove it", "b.ipynb", 2, 4),
    )
    healthy = Verdict("healthy", "healthy · 1 of 1 checks ran · 50 files read", None, 1, 1)
    row = replace(report.checks[0], status="pass", reason=None)
    return replace(report, findings=findings, remarks=remarks, verdict=healthy, checks=(row,))


def sample_many(number: int = 1000, files: int = 50) -> Report:
    """As many findings as a reader of source may make of a large repository; some are alike but for their lines."""
    nobody = RankSet()
    findings = tuple(
        Finding(
            code="COL002",
            name="collective-missing",
            severity="error" if each % 3 else "warning",
            message=f"all_reduce at src/part{each % files}.py:{each + 2} is called only where rank == 0.",
            where=(
                Where(
                    nobody,
                    "culprit",
                    f"src/part{each % files}.py",
                    each + 2,
                    "step",
                    "dist.all_reduce(x)",
                    column=9,
                ),
                Where(nobody, "condition", f"src/part{each % files}.py", each + 1, "step", "if rank == 0:"),
            ),
            evidence=(EvidenceItem("source", "rank == 0 differs with the rank"),),
            fix=(Fix("move the call out of the `if`", code="dist.all_reduce(x)"),),
        )
        for each in range(number)
    )
    first = findings[0].message
    rows = (CheckRow("lint.calls", ("COL002",), "source", "fail", first, 0.001, "ddpdoctor"),)
    return make_report(
        Evidence(launch=Launch("lint", nproc=0, world_size=0, backend="none")),
        verdict=Verdict("problems", first, "COL002", 1, 1),
        rows=rows,
        findings=findings,
        invocation=("ddpdoctor", "lint", "."),
    )
