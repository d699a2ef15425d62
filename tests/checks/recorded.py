"""Made-up logs of recorded calls, and what the checks say of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import ddpdoctor_checks
from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.collectives import (
    COMPLETED,
    RETIRED,
    CallLog,
    CallTable,
    RankCalls,
    RecordedCall,
)
from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.judge import Finding, Registry
from ddpdoctor.report.build import build_report
from ddpdoctor.report.model import Report
from ddpdoctor.testing import STARTED as BEGAN
from tests.checks.jobs import Job

CREATED_NS = 1_795_000_000_000_000_000
Row = tuple[str, int]
"""Operation and line; the shape follows from the line unless a row has one of its own."""
DONE = [("all_reduce", 10), ("all_reduce", 11), ("barrier", 12)]


@dataclasses.dataclass
class Made:
    """A log in the making."""

    world: int
    table: CallTable = dataclasses.field(default_factory=CallTable)
    rows: dict[int, list[tuple[int, int, int]]] = dataclasses.field(default_factory=dict)
    changes: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    written_ns: int | None = CREATED_NS + 603 * 10**9
    """When the dumps were: the time limit of the calls is 600 s, and the watchdog has written them."""

    def call(
        self, ranks: Sequence[int], op: str, line: int, number: int, state: int = COMPLETED + RETIRED, *,
        shape: tuple[int, ...] = (4,), group: str = "0", members: RankSet | None = None, dtype: str = "float32",
        **more: Any,
    ) -> Made:  # fmt: skip
        stack = self.table.stack(
            (
                Frame("/site-packages/torch/distributed/distributed_c10d.py", 3245, op),
                Frame("train.py", line, "step"),
            )
        )
        place = self.table.group(group, "default_pg" if group == "0" else "", members)
        kept = () if op == "barrier" else (shape,)
        made = RecordedCall(op, place, kept, kept, (dtype,), (dtype,), stack, timeout_ms=600_000, **more)
        for rank in ranks:
            self.rows.setdefault(rank, []).append((self.table.call(made), number, state))
        return self

    def together(self, rows: Sequence[Row] = DONE) -> Made:
        """All ranks make the same calls, which end."""
        for number, (op, line) in enumerate(rows, 1):
            self.call(range(self.world), op, line, number)
        return self

    def log(self) -> CallLog:
        self.table.world = self.world
        ranks = []
        for rank, rows in self.rows.items():
            calls, numbers, states = zip(*rows, strict=True) if rows else ((), (), ())
            begun = Numbers(CREATED_NS + number * 10_000_000 for number in numbers)
            made = RankCalls(
                rank, calls=Numbers(calls), sequences=Numbers(numbers), states=Numbers(states), begun_ns=begun,
                written_ns=self.written_ns,
            )  # fmt: skip
            ranks.append(dataclasses.replace(made, **self.changes.get(rank, {})))
        return self.table.log(ranks)


def judge(made: Made | Evidence) -> Report:
    evidence = made
    if isinstance(made, Made):
        evidence = Evidence(launch=Launch("analyze", world_size=made.world), calls=(made.log(),))
    registry = Registry()
    ddpdoctor_checks.register(registry)
    assert isinstance(evidence, Evidence)
    report = build_report(evidence, registry=registry, started_at=BEGAN, duration_s=1.0)
    assert [row.reason for row in report.checks if row.status == "error"] == []
    return report


def first(made: Made | Evidence) -> Finding:
    report = judge(made)
    assert report.findings, report.verdict
    found = report.findings[0]
    assert found.message.endswith(".")
    assert found.fix
    assert not set(found.ranks) & set(found.victims)
    return found


def nothing_found(made: Made) -> bool:
    report = judge(made)
    rows = {row.status for row in report.checks if row.id.startswith("recorder.")}
    return not report.findings and rows == {"pass"}


def lines(found: Finding) -> list[tuple[str, int, str]]:
    return [(str(place.ranks), place.line, place.role) for place in found.where]


def with_job(made: Made, job: Job) -> Evidence:
    return dataclasses.replace(
        job.evidence(), calls=(made.log(),), launch=Launch("analyze", world_size=made.world)
    )
