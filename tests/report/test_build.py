from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.evidence.job import JobEnd, Milestone, Moment, ProcessRecord
from ddpdoctor.judge import CheckRow, Finding, Fix, Registry, check, diagnosis
from ddpdoctor.judge.selection import Selection
from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.build import build_report, describe_scope, describe_world, format_time
from ddpdoctor.report.terminal import TextRenderer
from ddpdoctor.testing import STARTED, make_node, make_world


@check("X-a-001", name="n1", title="t", severity="error", family="f", needs=(), since="1", id="a.one")
def find_one(evidence: Evidence) -> Iterable[Finding]:
    """One."""
    yield Finding("one.", fix=(Fix("do"),))


@check(
    "X-a-002",
    name="n2",
    title="t",
    severity="error",
    family="f",
    needs=(),
    since="1",
    id="a.two",
    explains=("X-a-001",),
)
def find_two(evidence: Evidence) -> Iterable[Finding]:
    """Two."""
    yield Finding("two.", fix=(Fix("do"),))


@check("X-a-003", name="n3", title="t", severity="error", family="f", needs=(), since="1", id="a.raises")
def fail(evidence: Evidence) -> Iterable[Finding]:
    """Raise."""
    raise KeyError("x")


@check("X-a-004", name="n4", title="t", severity="error", family="f", needs=(), since="1", id="a.fine")
def pass_(evidence: Evidence) -> Iterable[Finding]:
    """Pass."""
    return ()


def build(*functions: object, source: str = "ddpdoctor", **settings: object) -> Report:
    registry = Registry()
    registry.source = source
    registry.add(*functions)  # type: ignore[arg-type]  # functions of this module
    given = {"started_at": STARTED, "duration_s": 1.0, **settings}
    return build_report(make_world(2, 2), registry=registry, **given)  # type: ignore[arg-type]  # as named above


def test_cause_is_first_and_is_the_verdict() -> None:
    report = build(find_one, find_two)
    assert [(finding.code, finding.role) for finding in report.findings] == [
        ("X-a-002", "cause"),
        ("X-a-001", "consequence"),
    ]
    assert (report.verdict.status, report.verdict.code) == ("problems", "X-a-002")


def test_selection_chooses_findings_and_checks() -> None:
    report = build(find_one, find_two, pass_, selection=Selection(None, frozenset({"X-a-002"})))
    assert [row.id for row in report.checks] == ["a.one", "a.fine"]
    assert [(finding.code, finding.role) for finding in report.findings] == [("X-a-001", "cause")]
    assert report.verdict.of == 2
    only = build(find_one, find_two, pass_, selection=Selection(frozenset({"X-a-004"})))
    assert only.verdict.status == "healthy"


@diagnosis("a.both", codes=("X-a-001", "X-a-002"), family="f", needs=())
def judge_both(evidence: Evidence) -> Iterable[Finding]:
    """Yield two."""
    yield Finding("one.", code="X-a-001", fix=(Fix("do"),))
    yield Finding("two.", code="X-a-002", fix=(Fix("do"),))


@pytest.mark.parametrize(
    ("selection", "status", "found"),
    [
        (Selection(), "fail", ["X-a-002", "X-a-001"]),
        (Selection(None, frozenset({"X-a-001"})), "fail", ["X-a-002"]),
        (Selection(frozenset({"X-a-001"})), "fail", ["X-a-001"]),
        (Selection(frozenset({"X-a-001", "X-a-004"}), frozenset({"X-a-001"})), None, []),
        (Selection(None, frozenset({"X-a-001", "X-a-002"})), None, []),
    ],
)
def test_row_of_a_diagnosis_fails_by_what_was_chosen(
    selection: Selection, status: str | None, found: list[str]
) -> None:
    report = build(find_one, find_two, judge_both, pass_, selection=selection)
    rows = {row.id: (row.status, row.reason) for row in report.checks}
    assert rows.get("a.both", (None,))[0] == status
    assert list(dict.fromkeys(finding.code for finding in report.findings)) == found
    if status is not None:
        assert rows["a.both"][1] == ("one." if "X-a-001" in found else "two.")


def test_check_of_a_plugin_that_raises_does_not_cost_the_verdict() -> None:
    ours, theirs = build(fail, pass_), build(fail, pass_, source="a")
    assert ours.verdict.status == "unknown"
    assert theirs.verdict.status == "healthy"
    assert [row.status for row in theirs.checks] == ["error", "pass"]
    assert theirs.checks[0].reason == "a: KeyError: 'x'"


def test_rows_that_no_check_made_are_shown() -> None:
    row = CheckRow("plugin.x.checks", (), "plugins", "error", "x: gone", 0.0, "x", required=False)
    report = build(pass_, extra_rows=[row])
    assert report.checks[-1] == row
    assert (report.verdict.status, report.verdict.looked, report.verdict.of) == ("healthy", 1, 2)


def test_times_are_rfc_3339_in_utc_with_microseconds() -> None:
    east = timezone(timedelta(hours=2))
    assert format_time(datetime(2026, 11, 20, 16, 15, 3, 7, tzinfo=east)) == "2026-11-20T14:15:03.000007Z"
    with pytest.raises(ValueError, match="without time zone"):
        format_time(datetime(2026, 1, 1))


def test_world_is_described_from_the_evidence() -> None:
    world = describe_world(make_world(2, 3))
    assert (world.size, world.backend, world.torch, world.launcher) == (6, "gloo", "2.13.0", "ddpdoctor")
    assert [(node.host, str(node.ranks)) for node in world.nodes] == [("node-0", "0-2"), ("node-1", "3-5")]
    assert world.nodes[1].facts["cores"] == 64


def test_ranks_that_never_reported_are_where_they_should_be() -> None:
    world = describe_world(make_world(2, 3, ranks=()))
    assert [str(node.ranks) for node in world.nodes] == ["0-2", "3-5"]


def test_scope_says_who_was_heard_where_it_is_not_all() -> None:
    """Each node of a check without a world looks only at itself; it said "2 nodes"."""
    whole = make_world(2, 2)
    assert describe_scope(whole, describe_world(whole)) == "4 ranks on 2 nodes, gloo, torch 2.13.0"
    own = replace(whole, nodes=whole.nodes[:1], ranks=whole.ranks[:2])
    assert describe_scope(own, describe_world(own)) == "2 of 4 ranks on 1 of 2 nodes, gloo, torch 2.13.0"
    facts = replace(own, ranks=(), launch=replace(own.launch, stages=("facts", "tcp")))
    assert describe_scope(facts, describe_world(facts)) == "1 of 2 nodes, no ranks launched, torch 2.13.0"


@pytest.mark.parametrize(
    ("stages", "scope"),
    [
        (("facts", "tcp"), "1 node, no ranks launched, torch 2.13.0"),
        (("facts", "rendezvous"), "1 rank on 1 node, gloo, torch 2.13.0"),
    ],
)
def test_scope_says_what_was_examined(stages: tuple[str, ...], scope: str) -> None:
    evidence = make_world([make_node(0)], nproc=1)
    evidence = replace(evidence, launch=replace(evidence.launch, stages=stages))
    assert describe_scope(evidence, describe_world(evidence)) == scope


def test_report_survives_being_saved() -> None:
    report = build(find_one, find_two, timings={"facts": 0.1}, interrupted="SIGINT", invocation=["ddpdoctor"])
    again = Report.from_dict(report.to_dict())
    assert again.to_dict() == report.to_dict()
    assert again.findings == report.findings
    assert set(report.timings) == {"facts", "judge"}


@pytest.mark.parametrize(("signal", "exit_code", "status", "line"), [
    ("SIGINT", 1, "unknown", "ddpdoctor ? interrupted by the user (SIGINT) · no failure before that · 2 ranks, "),
    ("SIGTERM", 1, "unknown", "ddpdoctor ? stopped by SIGTERM · no failure before that · 2 ranks, "),
    ("SIGTERM", 0, "healthy", "ddpdoctor ✓ nothing found · 2 ranks, "),
    ("SIGUSR1", 0, "healthy", "ddpdoctor ✓ nothing found · 2 ranks, "),
    ("SIGUSR1", 1, "problems", "ddpdoctor ? inconclusive"),
])  # fmt: skip
def test_job_that_was_interrupted_is_not_called_healthy(
    signal: str, exit_code: int, status: str, line: str
) -> None:
    registry = Registry()
    registry.add(pass_)
    launch = Launch(command="run", launcher="torchrun", nproc=2, world_size=2)
    seen = Evidence(launch=launch, job=(JobEnd(exit_code=exit_code, interrupted=signal),))
    report = build_report(seen, registry=registry, started_at=STARTED, duration_s=1.0)
    assert report.verdict.status == status
    text = TextRenderer().render(report, RenderOptions(width=120))
    assert text.startswith(line)
    assert status == "problems" or len(text.splitlines()) == 1


def joined(rank: int, world: int = 4, **changes: Any) -> ProcessRecord:
    made = ProcessRecord(
        pid=100 + rank, role="rank", rank=rank, world_size=world, backend="gloo", exit_code=0,
        milestones=(Milestone("init", Moment(1)),),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


@pytest.mark.parametrize(("processes", "words"), [
    ([joined(2)], "saw 1 of 4 ranks (rank 2)"),
    ([joined(0), joined(1)], "saw 2 of 4 ranks (ranks 0-1)"),
    ([joined(0, attempt=0), joined(1, attempt=1)], "saw 1 of 4 ranks (rank 1)"),
    ([joined(0, 1), joined(3, 4)], "saw 1 of 4 ranks (rank 3)"),
    ([joined(rank) for rank in range(4)], None),
    ([joined(0, world=1)], None),
    ([joined(2, milestones=())], None),
    ([], None),
], ids=["one", "half", "of the last attempt", "of the largest world", "all", "alone", "joined nothing", "no process"])  # fmt: skip
def test_a_job_of_which_some_ranks_were_not_seen_is_not_called_healthy(
    processes: list[ProcessRecord], words: str | None
) -> None:
    registry = Registry()
    registry.add(pass_)
    launch = Launch(command="run", launcher="torchrun", nproc=2, world_size=4)
    seen = Evidence(launch=launch, processes=tuple(processes), job=(JobEnd(exit_code=0),))
    report = build_report(seen, registry=registry, started_at=STARTED, duration_s=1.0)
    assert report.verdict.status == ("healthy" if words is None else "unknown")
    text = " ".join(TextRenderer().render(report, RenderOptions(width=120)).split())
    if words is None:
        assert "nothing found" in text
    else:
        assert report.verdict.headline.startswith(f"{words}: nothing was found there")
        assert f"ddpdoctor ? {words} · no verdict" in text
        assert "✓" not in text
