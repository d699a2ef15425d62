"""Made-up jobs that ended badly: ranks with their processes, and what befell each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ddpdoctor.evidence import Evidence, Frame, Launch
from ddpdoctor.evidence.job import (
    CrashRecord,
    ExceptionRecord,
    JobEnd,
    MemoryRecord,
    Milestone,
    Moment,
    ProcessRecord,
    TextMatch,
    WrapperFacts,
)
from ddpdoctor.evidence.texts.matching import find_entry, match_line
from ddpdoctor.judge import Finding, Registry, Verdict
from ddpdoctor.judge.runner import CheckRow
from ddpdoctor.report.build import build_report
from ddpdoctor.testing import STARTED
from ddpdoctor_checks.job import ends

START_NS = 1_700_000_000_000_000_000
CLOSED = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:{}. This is "
    "typically caused by a remote worker crashing."
)
TIMED_OUT = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation "
    "to complete"
)
SITE = "/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py"
LOOP = (
    Frame(SITE, 1700, "forward"),
    Frame("train.py", 71, "main", "for x, y in loader:"),
    Frame("train.py", 90, "<module>"),
)


def at(seconds: float, node: int = 0, skew: float = 0.0) -> Moment:
    """A moment so many seconds after the start, on a node with its own monotonic clock."""
    return Moment(START_NS + int((seconds + skew) * 1e9), 5_000_000_000 * (node + 1) + int(seconds * 1e9))


@dataclass
class Job:
    """A job in the making: `world` ranks, `nproc` on a node, all of which would have ended well."""

    world: int = 4
    nproc: int | None = None
    exit_code: int | None = 1
    attempt: int = 0
    skew: dict[int, float] = field(default_factory=dict)
    processes: dict[int, ProcessRecord] = field(default_factory=dict)
    exceptions: list[ExceptionRecord] = field(default_factory=list)
    crashes: list[CrashRecord] = field(default_factory=list)
    texts: list[TextMatch] = field(default_factory=list)
    memory: list[MemoryRecord] = field(default_factory=list)
    wrappers: list[WrapperFacts] = field(default_factory=list)
    extra: list[ProcessRecord] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rank in range(self.world):
            self.processes[rank] = self.process(rank)

    @property
    def per_node(self) -> int:
        return self.nproc or self.world

    def node(self, rank: int) -> int:
        return rank // self.per_node

    def when(self, rank: int, seconds: float) -> Moment:
        node = self.node(rank)
        return at(seconds, node, self.skew.get(node, 0.0))

    def process(self, rank: int, **changes: Any) -> ProcessRecord:
        node = self.node(rank)
        record = ProcessRecord(
            pid=1000 + rank + 100_000 * self.attempt,
            node=node,
            host=f"node-{'abcdefgh'[node] if node < 8 else node}",
            rank=rank,
            local_rank=rank % self.per_node,
            world_size=self.world,
            attempt=self.attempt,
            command=("/venv/bin/python", "-u", "train.py", "--lr", "0.1"),
            script="train.py",
            started=self.when(rank, 0.0),
            ended=self.when(rank, 20.0),
            exit_code=0,
            clean_end=True,
            milestones=(
                Milestone("start", self.when(rank, 0.0)),
                Milestone("init", self.when(rank, 1.0)),
                Milestone("wrap", self.when(rank, 1.5)),
            ),
            torch="2.11.0",
            backend="gloo",
        )
        return replace(record, **changes)

    def set(self, rank: int, **changes: Any) -> Job:
        self.processes[rank] = replace(self.processes[rank], **changes)
        return self

    def raises(
        self,
        rank: int,
        type: str,
        message: str,
        seconds: float = 10.0,
        frames: Sequence[Frame] = LOOP,
        exit_code: int = 1,
        **changes: Any,
    ) -> Job:
        """One rank raises and ends with status 1 some 50 ms later."""
        process = self.processes[rank]
        record = ExceptionRecord(
            process.pid, type, message, tuple(frames), node=process.node, host=process.host, rank=rank,
            attempt=self.attempt, at=self.when(rank, seconds),
        )  # fmt: skip
        self.exceptions.append(replace(record, **changes))
        return self.set(
            rank,
            exit_code=exit_code,
            exit_how="exception",
            ended=self.when(rank, seconds + 0.05),
            clean_end=True,
        )

    def complains(self, ranks: Iterable[int], seconds: float = 10.4, message: str = CLOSED) -> Job:
        """Ranks lose a peer."""
        for number, rank in enumerate(ranks):
            self.raises(rank, "RuntimeError", message.format(4000 + number), seconds + number * 1e-5)
        return self

    def dies(self, rank: int, signal: int, seconds: float = 10.0, **changes: Any) -> Job:
        """One rank dies of a signal."""
        changes = {"clean_end": False, **changes}
        return self.set(rank, exit_code=None, signal=signal, ended=self.when(rank, seconds), **changes)

    def terminates(self, ranks: Iterable[int], seconds: float = 10.6) -> Job:
        """The agent ends ranks."""
        for rank in ranks:
            self.dies(rank, 15, seconds, signal_sender="agent")
        return self

    def exits(
        self, rank: int, status: int, seconds: float = 10.0, how: str | None = "sys.exit", **changes: Any
    ) -> Job:
        """One rank calls sys.exit or os._exit."""
        call = (Frame("train.py", 55, "main", "sys.exit(3)"), Frame("train.py", 90, "<module>"))
        changes = {"exit_call": call if how else (), **changes}
        return self.set(rank, exit_code=status, exit_how=how, ended=self.when(rank, seconds), **changes)

    def says(self, rank: int | None, line: str, seconds: float | None = None, **changes: Any) -> Job:
        """A line of output that the table knows."""
        hits = match_line(line)
        assert hits, f"no entry knows {line!r}"
        for entry, groups in hits:
            process = self.processes[rank] if rank is not None else None
            text = TextMatch(
                entry, line, groups, node=process.node if process else 0, host=process.host if process else "",
                pid=process.pid if process else None, rank=rank, attempt=self.attempt,
                at=self.when(rank or 0, seconds) if seconds is not None else None,
            )  # fmt: skip
            self.texts.append(replace(text, **changes))
        return self

    def says_example(self, rank: int | None, entry: str, **changes: Any) -> Job:
        return self.says(rank, find_entry(entry).example, **changes)

    def evidence(self) -> Evidence:
        nodes = -(-self.world // self.per_node)
        launch = {
            "command": "run", "launcher": "torchrun", "nnodes": nodes, "nproc": self.per_node,
            "world_size": self.world, "master_addr": "node-a", "master_port": 29500, **self.launch,
        }  # fmt: skip
        end = {"exit_code": self.exit_code, "launcher": "torchrun", **self.end}
        return Evidence(
            launch=Launch(**launch),
            processes=(*self.processes.values(), *self.extra),
            exceptions=tuple(self.exceptions),
            crashes=tuple(self.crashes),
            texts=tuple(self.texts),
            memory=tuple(self.memory),
            wrappers=tuple(self.wrappers),
            job=(JobEnd(**end),),
        )


def join_attempts(*jobs: Job) -> Evidence:
    """One job of several attempts."""
    parts = [job.evidence() for job in jobs]
    return replace(
        parts[-1],
        processes=tuple(p for part in parts for p in part.processes),
        exceptions=tuple(e for part in parts for e in part.exceptions),
        texts=tuple(t for part in parts for t in part.texts),
    )


def judge(evidence: Evidence | Job) -> tuple[list[Finding], Verdict, dict[str, CheckRow]]:
    """All checks of the family over a job: findings in order, the verdict, and rows by id."""
    registry = Registry()
    registry.add_module(ends)
    seen = evidence.evidence() if isinstance(evidence, Job) else evidence
    report = build_report(seen, registry=registry, started_at=STARTED, duration_s=1.0)
    rows = {row.id: row for row in report.checks}
    assert [row.reason for row in rows.values() if row.status == "error"] == []
    for finding in report.findings:
        assert finding.message.endswith((".", "…")), finding.message
        assert finding.severity == "info" or finding.fix, finding.message
        assert Finding.from_dict(finding.to_dict()) == finding
        assert len(finding.message) < 900
    return list(report.findings), report.verdict, rows


def cause_of(evidence: Evidence | Job) -> Finding:
    """The finding that comes first; it must be what ended the job, an abort after its end aside."""
    findings, verdict, _ = judge(evidence)
    assert findings, "nothing was found"
    assert findings[0].decisive == (findings[0].code != "ERR010")
    assert findings[0].role == "cause"
    assert verdict.code == findings[0].code
    assert verdict.headline == findings[0].message
    return findings[0]
