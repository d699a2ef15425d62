"""Stages that were cut, and worlds of 16,384 ranks."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import (
    Evidence,
    Frame,
    NodeFacts,
    RankSet,
    SmokeResult,
    StackClass,
    StageRecord,
)
from ddpdoctor.judge import run_checks
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    collect_checks,
    judge_one,
    make_world,
)
from ddpdoctor_checks import backends
from tests.checks.gpu_worlds import (
    H200,
    PROBE,
    SLEEP,
    WAIT,
    make_gpu_world,
    with_rank,
    with_stage,
)


def make_cut(**changes: Any) -> Evidence:
    cut: dict[str, Any] = {
        "status": "cut",
        "limit_s": 30.0,
        "finished": RankSet([0]),
        "unfinished": RankSet([1, 2, 3]),
        "stacks": (StackClass(RankSet([1, 3]), WAIT), StackClass(RankSet([2]), SLEEP)),
    }
    return with_stage(make_world(1, 4), "collectives", **{**cut, **changes})


def test_a_cut_stage_names_who_finished_who_waits_and_who_stands_elsewhere() -> None:
    found = assert_finds(
        backends.find_stage_timed_out,
        make_cut(),
        code="BKD011",
        id="stage.collectives.in_time",
        severity="error",
    )
    assert found.message.startswith(
        "Stage collectives was stopped at its limit of 30 s: ranks 1-3 did not finish, rank 0 had; "
        "ranks 1, 3 in all_reduce"
    )
    assert "from probe_collectives (launch/probes/collectives.py:88)" in found.message
    assert (str(found.ranks), str(found.victims)) == ("2", "1,3")
    assert [(each.role, each.file, each.line) for each in found.where] == [
        ("culprit", "/data/model.py", 12),
        ("victim", PROBE.file, 88),
    ]
    stacks = found.details["stacks"]
    assert [each["waiting"] for each in stacks] == [True, False]
    assert found.fix[-1].command == "ddpdoctor check --nproc 4 --stage-timeout collectives=120"
    assert [each["library_frames_folded"] for each in stacks] == [1, 1]
    assert "--only facts,smoke,tcp,rendezvous,backends,collectives" in (found.fix[0].command or "")


def test_a_user_who_blocks_inside_ddps_forward_is_outside_the_collective() -> None:
    frames = (Frame("/usr/lib/python3.11/threading.py", 300, "wait"), *SLEEP)
    world = make_cut(stacks=(StackClass(RankSet([1]), frames), StackClass(RankSet([2, 3]), WAIT)))
    assert (
        str(assert_finds(backends.find_stage_timed_out, world, id="stage.collectives.in_time").ranks) == "1"
    )


def test_ranks_that_all_wait_are_all_named() -> None:
    world = make_cut(stacks=(StackClass(RankSet([1, 2, 3]), WAIT),))
    found = assert_finds(backends.find_stage_timed_out, world, id="stage.collectives.in_time")
    assert (str(found.ranks), found.confidence) == ("1-3", "medium")


def test_missing_stacks_say_why_and_how_to_permit_them() -> None:
    note = "py-spy may not trace: Operation not permitted"
    world = make_cut(stacks=(), stacks_note=note)
    found = assert_finds(backends.find_stage_timed_out, world, id="stage.collectives.in_time")
    assert any(note in each.text for each in found.evidence)
    assert any("SYS_PTRACE" in fix.text for fix in found.fix)


def test_a_probe_inside_a_native_wait_is_not_blamed() -> None:
    world = make_cut(stacks=(StackClass(RankSet([1]), (PROBE,)), StackClass(RankSet([2, 3]), WAIT)))
    found = assert_finds(backends.find_stage_timed_out, world, id="stage.collectives.in_time")
    assert (str(found.ranks), str(found.victims)) == ("1-3", "")


def test_a_stopped_rank_is_the_culprit_wherever_it_stands() -> None:
    stopped = StackClass(RankSet([2]), WAIT, state="T (stopped)")
    world = make_cut(stacks=(stopped, StackClass(RankSet([1, 3]), WAIT)))
    found = assert_finds(backends.find_stage_timed_out, world, id="stage.collectives.in_time")
    assert (str(found.ranks), str(found.victims), found.confidence) == ("2", "1,3", "high")


def test_a_process_that_could_not_be_read_shows_its_state() -> None:
    world = make_cut(stacks=(StackClass(RankSet([1, 2, 3]), (), state="D (disk sleep)"),))
    found = assert_finds(backends.find_stage_timed_out, world, id="stage.collectives.in_time")
    assert "ranks 1-3 could not be read (process state D (disk sleep))" in found.message


def test_only_the_cut_stage_fails_and_later_ones_are_unknown() -> None:
    world = make_cut()
    reason = "stage collectives was cut"
    for stage in ("ddp", "bandwidth"):
        world = with_stage(world, stage, status="unreached", reason=reason)
    rows, _ = judge_one(backends.find_stage_timed_out, world)
    assert [row.status for row in rows] == ["pass"] * 5 + ["fail", "unknown", "unknown", "skipped"]
    assert rows[-2].reason == reason


def test_a_stage_that_failed_in_time_is_in_time() -> None:
    assert_passes(
        backends.find_stage_timed_out,
        with_stage(make_world(1, 2), "ddp", status="failed", reason="an error"),
        id="stage.ddp.in_time",
    )


def test_a_stage_that_another_limit_cut_names_that_limit_and_how_long_it_ran() -> None:
    """--timeout 10 ended it after 8 s; "at its limit of 30 s" was said."""
    world = make_cut(limit_s=10.0, limit_option="--timeout", duration_s=8.04)
    found = assert_finds(backends.find_stage_timed_out, world, id="stage.collectives.in_time")
    assert found.message.startswith(
        "Stage collectives was stopped after 8.0 s by --timeout 10: ranks 1-3 did not"
    )
    assert (found.details["limit_option"], found.details["limit_s"]) == ("--timeout", 10.0)
    assert "--timeout 40" in (found.fix[-1].command or "")


def test_a_rendezvous_that_was_cut_before_any_rank_started_says_so() -> None:
    world = replace(make_world(1, 2), ranks=())
    record: dict[str, Any] = {"finished": RankSet(), "unfinished": RankSet(), "duration_s": 6.0}
    world = with_stage(world, "rendezvous", status="cut", limit_s=9.0, limit_option="--timeout", **record)
    found = assert_finds(backends.find_stage_timed_out, world, id="stage.rendezvous.in_time")
    assert found.message == (
        "Stage rendezvous was stopped after 6.0 s by --timeout 9 on node-0, where no rank had started."
    )


def test_a_stage_cut_on_one_node_names_that_node() -> None:
    world = make_world(2, 2)
    stages = tuple(
        replace(each, status="cut", stacks_note=None) if (each.stage, each.node) == ("facts", 1) else each
        for each in world.stages
    )
    found = assert_finds(
        backends.find_stage_timed_out, replace(world, stages=stages), id="stage.facts.in_time"
    )
    assert found.nodes == ("node-1",)
    assert found.message == "Stage facts was stopped at its limit of 30 s on node-1."


# -- scale -----------------------------------------------------------------------------------------


@pytest.mark.unmeasured
def test_a_world_of_16384_ranks_is_judged_in_seconds() -> None:
    nodes, nproc = 2048, 8
    world = make_gpu_world(nproc, nodes)
    world = with_rank(world, 9000, device_uuid=world.ranks[9001].device_uuid)
    cut = StageRecord(
        0,
        "ddp",
        "cut",
        limit_s=30.0,
        unfinished=RankSet.span(nodes * nproc),
        stacks=tuple(StackClass(RankSet(range(i, nodes * nproc, 7)), WAIT) for i in range(7)),
    )
    world = replace(world, stages=(*world.stages, cut))
    checks = [
        each
        for function in vars(backends).values()
        if hasattr(function, "__ddpdoctor_checks__")
        for each in collect_checks(function)
    ]
    started = time.perf_counter()
    rows, findings = run_checks(checks, world)
    assert time.perf_counter() - started < 120  # not quadratic; the bar itself is the benchmark's
    assert {each.code for each in findings} == {"BKD003", "BKD011"}
    assert "error" not in {row.status for row in rows}
    shared = next(each for each in findings if each.code == "BKD003")
    assert str(shared.ranks) == "9000-9001"


@pytest.mark.unmeasured
def test_a_cluster_in_which_every_device_is_wrong_is_folded() -> None:
    world = make_gpu_world(8, 2048)
    nodes = tuple(
        replace(node, devices=tuple(replace(each, ecc_uncorrected=1) for each in node.devices))
        for node in world.nodes
    )
    ranks = tuple(replace(each, device_uuid=f"{H200}-{each.node}-0") for each in world.ranks)
    world = replace(world, nodes=nodes, ranks=ranks)
    started = time.perf_counter()
    _, faulty = judge_one(backends.find_device_faulty, world)
    _, shared = judge_one(backends.find_device_shared, world)
    assert time.perf_counter() - started < 120  # not quadratic; the bar itself is the benchmark's
    assert len(faulty) == len(shared) == 9
    assert len(faulty[-1].nodes) == 2047  # the first node's eight devices are told one by one
    assert len(shared[-1].ranks) == 2040 * 8
    assert faulty[-1].message.startswith("The same holds 16,376 more times on node-1, node-2")


def test_a_node_without_facts_still_has_a_name() -> None:
    stuck = SmokeResult(3, "cuda:0", False, killable=False)
    world = replace(make_world(1, 2, smoke=(stuck,)), nodes=(NodeFacts(0, "a"),))
    assert "node 3" in assert_finds(backends.find_device_faulty, world).message
