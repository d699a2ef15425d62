"""Jobs on several nodes of which one could not be heard: lost, late, interrupted or not watched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.members import JobNode
from tests.checks.jobs import START_NS, TIMED_OUT, Job, at, cause_of, join_attempts, judge

MESH = "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out " \
    "connecting: SO_ERROR: Connection refused, remote=[10.0.0.1]:5508$1"  # fmt: skip


def member(node: int, state: str, **changes: Any) -> JobNode:
    made = JobNode(node, f"node-{'ab'[node]}", RankSet([2 * node, 2 * node + 1]), state=state)
    return replace(made, **changes)


def seen_from_head(job: Job, other: JobNode) -> Evidence:
    """The evidence of node 0 of two, with what it knew of the other."""
    whole = job.evidence()
    kept: dict[str, Any] = {
        kind: tuple(row for row in getattr(whole, kind) if row.node == 0)
        for kind in ("processes", "exceptions", "texts")
    }
    return replace(whole, **kept, members=(member(0, "told", own=True, head=True), other))


def complaining(message: str = TIMED_OUT) -> Job:
    return Job(4, nproc=2).complains([0, 1], message=message)


@pytest.mark.parametrize(
    ("other", "confidence"),
    [
        (member(1, "closed", seen_ns=START_NS), "high"),
        (member(1, "silent", silent_s=9.0, seen_ns=START_NS), "medium"),
        (member(1, "cut"), "medium"),
    ],
    ids=lambda value: value.state if isinstance(value, JobNode) else "",
)
def test_node_that_fell_silent_is_lost(other: JobNode, confidence: str) -> None:
    cause = cause_of(seen_from_head(complaining(), other))
    assert (cause.code, cause.confidence) == ("NET015", confidence)
    assert (cause.ranks, cause.nodes, cause.victims) == (RankSet([2, 3]), ("node-b",), RankSet([0, 1]))
    assert cause.details["last_sign_wall_ns"] == other.seen_ns


@pytest.mark.parametrize(("silent_s", "lost"), [(20.0, False), (40.0, True)])
def test_signs_of_life_are_rarer_in_large_jobs(silent_s: float, lost: bool) -> None:
    others = tuple(JobNode(node, f"n{node}", RankSet([node + 2]), state="told") for node in range(2, 1000))
    evidence = seen_from_head(complaining(), member(1, "silent", silent_s=silent_s))
    findings, _, _ = judge(replace(evidence, members=(*evidence.members, *others)))
    assert ("NET015" in [each.code for each in findings]) == lost


@pytest.mark.parametrize(
    "other",
    [
        member(1, "silent", silent_s=5.0),
        member(1, "silent", silent_s=None),
        member(1, "alive"),
        member(1, "stopping"),
        member(1, "done"),
        member(1, "ended"),
        member(1, "left"),
        member(1, "unwatched"),
        member(1, "unknown"),
    ],
    ids=lambda value: f"{value.state} {value.silent_s}",
)
def test_node_that_was_not_heard_is_not_blamed(other: JobNode) -> None:
    findings, verdict, _ = judge(seen_from_head(complaining(), other))
    assert not [each for each in findings if each.severity == "error"]
    assert verdict.code is None
    assert "ranks 2-3 on node-b" in verdict.headline


def test_ranks_of_a_node_that_was_not_heard_are_not_named_as_those_that_never_came() -> None:
    job = Job(4, nproc=2).complains([0], message=TIMED_OUT)
    job.set(1, ended=at(30.0), exit_code=1, signal=None)
    evidence = seen_from_head(job, member(1, "alive"))
    findings = [(each.code, list(each.ranks)) for each in judge(evidence)[0]]
    assert findings == [("ERR006", [1])]


@pytest.mark.parametrize(
    ("seen_as", "code"),
    [("told", "COL005"), ("alive", "COL005"), ("silent", "NET011"), ("cut", "NET011"), (None, "NET011")],
)
def test_link_is_blamed_only_where_the_nodes_could_not_talk(seen_as: str | None, code: str) -> None:
    job = Job(4, nproc=2).complains([0, 1, 2, 3], message=TIMED_OUT)
    members = (member(0, "told", own=True), member(1, "told", seen_as=seen_as))
    assert cause_of(replace(job.evidence(), members=members)).code == code


def test_ranks_that_gave_up_in_different_lines_waited_for_each_other() -> None:
    job = Job(4, nproc=2).complains([0, 1], message=TIMED_OUT)
    for rank in (2, 3):
        job.raises(rank, "RuntimeError", TIMED_OUT, 10.5, frames=(Frame("train.py", 80, "validate"),))
    assert cause_of(job).code == "COL005"


def test_own_exception_goes_before_a_lost_node() -> None:
    job = Job(4, nproc=2).raises(0, "KeyError", "'x'").complains([1], 10.4)
    assert cause_of(seen_from_head(job, member(1, "closed"))).code == "ERR001"


def test_lost_node_of_a_job_that_went_well_or_was_interrupted_is_nobodys_matter() -> None:
    well = seen_from_head(Job(4, nproc=2, exit_code=0), member(1, "closed"))
    assert judge(well)[0] == []
    stopped = complaining()
    stopped.end["interrupted"] = "SIGINT"
    assert "NET015" not in [each.code for each in judge(seen_from_head(stopped, member(1, "closed")))[0]]


def test_interruption_elsewhere_is_told() -> None:
    other = member(1, "told", interrupted="SIGTERM")
    job = complaining()
    job.terminates([2, 3], 10.2)
    evidence = replace(job.evidence(), members=(member(0, "told", own=True), other))
    _, verdict, _ = judge(evidence)
    assert "the job was stopped on node-b (SIGTERM)" in verdict.headline


def test_clocks_measured_through_the_store_order_failures_of_two_nodes() -> None:
    """With a clock 5 s ahead the second node's failure seems later; in truth it was 0.3 s earlier."""
    job = Job(4, nproc=2, skew={1: 5.0})
    job.raises(0, "KeyError", "'a'", 10.3).raises(2, "ValueError", "b", 10.0)
    apart = member(1, "told", clock_offset_s=5.0, clock_error_s=0.002)
    first = member(0, "told", own=True, clock_offset_s=0.0, clock_error_s=0.0)
    cause = cause_of(replace(job.evidence(), members=(first, apart)))
    assert cause.ranks == RankSet([2])
    assert cause.details["lead"] == "0.30 s"


def test_mesh_that_fails_in_a_restart_is_no_firewall() -> None:
    """The ports were open in the first attempt: its failure is the cause."""
    before = Job(2, nproc=1).raises(1, "KeyError", "'x'").complains([0])
    after = Job(2, nproc=1, attempt=1).raises(1, "RuntimeError", MESH, 40.0)
    after.terminates([0], 41.0)
    cause = cause_of(join_attempts(before, after))
    assert (cause.code, cause.ranks) == ("ERR001", RankSet([1]))
    alone = Job(2, nproc=1).raises(1, "RuntimeError", MESH, 40.0).raises(0, "RuntimeError", MESH, 40.0)
    assert cause_of(alone).code == "NET005"
