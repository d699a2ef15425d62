"""Backends that are missing or fail; ranks that die; exceptions that end a stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import (
    BackendResult,
    Evidence,
    RankError,
    RankExit,
    RankMessage,
    RankSet,
    Rendezvous,
    SmokeResult,
)
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
    judge_one,
    make_world,
)
from ddpdoctor_checks import backends
from tests.checks.gpu_worlds import (
    PROBE,
    codes_in_order,
    make_gpu_world,
    with_launch,
    with_stage,
)


@pytest.mark.parametrize("world", [make_world(1, 4), make_gpu_world(8), make_gpu_world(2, 3)])
def test_a_healthy_world_has_no_findings(world: Evidence) -> None:
    for function in vars(backends).values():
        if hasattr(function, "__ddpdoctor_checks__"):
            rows, findings = judge_one(function, world)
            assert findings == []
            assert {row.status for row in rows} <= {"pass", "skipped"}, rows


def test_a_backend_that_is_not_built_names_what_is_usable() -> None:
    world = with_launch(make_world(1, 2), backend_asked="nccl", backend="nccl")
    found = assert_finds(backends.find_backend_unavailable, world, code="BKD001", severity="error")
    assert "nccl, is not in this PyTorch build" in found.message
    assert "usable here: gloo" in found.message
    assert found.fix[0].code == 'torch.distributed.init_process_group("gloo")'


def test_a_backend_without_a_device_is_told_from_one_that_is_not_built() -> None:
    everyone = RankSet.span(2)
    results = (
        BackendResult("nccl", True, device_present=False, reason="torch sees no cuda device here"),
        BackendResult("gloo", True, "cpu", group=everyone, collective=everyone),
    )
    world = with_launch(make_world(1, 2, backends=results), backend_asked="nccl", backend="nccl")
    found = assert_finds(backends.find_backend_unavailable, world, code="BKD001")
    assert "torch sees no CUDA device" in found.message
    assert "CUDA_VISIBLE_DEVICES" in (found.fix[1].command or "")


def test_a_refused_backend_is_read_from_the_error_where_no_group_formed() -> None:
    errors = tuple(
        RankError(rank, "rendezvous", "RuntimeError", "Distributed package doesn't have NCCL built in")
        for rank in range(2)
    )
    world = with_stage(make_world(1, 2, backends=(), errors=errors), "rendezvous", status="failed")
    world = with_launch(world, backend_asked="nccl", backend="nccl")
    found = assert_finds(backends.find_backend_unavailable, world, code="BKD001")
    assert "usable here: gloo" in found.message
    assert list(found.ranks) == [0, 1]
    assert codes_in_order(world)[:2] == [("BKD001", "cause"), ("BKD002", "consequence")]


def test_backends_that_nobody_asked_for_are_no_defect() -> None:
    assert_passes(backends.find_backend_unavailable, make_world(1, 2))


# -- BKD002 ----------------------------------------------------------------------------------------


def fail_gloo(*failures: tuple[str, str], formed: str = "0-3", passed: str = "") -> Evidence:
    messages = tuple(RankMessage(RankSet.parse(ranks), text) for ranks, text in failures)
    result = BackendResult(
        "gloo",
        True,
        "cpu",
        asked=True,
        group=RankSet.parse(formed),
        collective=RankSet.parse(passed),
        failures=messages,
    )
    return make_world(1, 4, backends=(result,))


def test_the_rank_that_raised_itself_is_blamed_and_not_those_that_lost_it() -> None:
    world = fail_gloo(
        ("0,2-3", "RuntimeError: Connection closed by peer [127.0.0.1]:4242"),
        (
            "1",
            "RuntimeError: [/__w/gloo/pair.cc:5] No space left on device. This is typically caused by GLHF!",
        ),
    )
    found = assert_finds(
        backends.find_backend_failed, world, code="BKD002", id="bkd.gloo.works", severity="error"
    )
    assert found.message == (
        "The first all_reduce failed with gloo on rank 1: RuntimeError: No space left on device."
    )
    assert (str(found.ranks), str(found.victims)) == ("1", "0,2-3")
    assert "TORCH_CPP_LOG_LEVEL=INFO" in (found.fix[0].command or "")


def test_a_group_that_did_not_form_is_told_from_a_collective_that_failed() -> None:
    world = fail_gloo(("0-3", "RuntimeError: Unable to find address for: eth9"), formed="")
    found = assert_finds(backends.find_backend_failed, world, id="bkd.gloo.works")
    assert "process group could not be created" in found.message


def test_a_backend_that_nobody_asked_for_fails_at_most_as_a_warning() -> None:
    world = make_gpu_world()
    gloo = BackendResult("gloo", True, "cpu", failures=(RankMessage(RankSet.span(2), "RuntimeError: no"),))
    mpi = replace(gloo, backend="mpi")
    world = replace(world, backends=(world.backends[0], gloo, mpi))
    assert_finds(backends.find_backend_failed, world, id="bkd.gloo.works", severity="warning")
    assert_finds(backends.find_backend_failed, world, id="bkd.mpi.works", severity="info")


def test_a_backend_that_is_not_there_or_was_not_tried_is_skipped() -> None:
    world = make_world(1, 2)
    assert assert_status(backends.find_backend_failed, world, "skipped", id="bkd.nccl.works") == (
        "not in this PyTorch build"
    )
    idle = BackendResult("mpi", True, None, reason="needs ranks that were started by mpirun")
    world = replace(world, backends=(*world.backends[:1], idle))
    assert "mpirun" in assert_status(backends.find_backend_failed, world, "skipped", id="bkd.mpi.works")


def test_a_rank_without_a_result_is_unknown_and_not_fine() -> None:
    world = fail_gloo(passed="0-2")
    assert "rank 3" in assert_status(backends.find_backend_failed, world, "unknown", id="bkd.gloo.works")


def test_a_cut_stage_says_why_there_is_no_result() -> None:
    world = with_stage(make_world(1, 2, backends=()), "backends", status="cut", reason="after 30 s")
    why = assert_status(backends.find_backend_failed, world, "unknown", id="bkd.gloo.works")
    assert why == "stage backends was stopped at its limit (after 30 s) before backend gloo had a result"


def test_a_stage_that_was_not_selected_is_skipped() -> None:
    world = make_world(1, 2, backends=())
    world = replace(world, stages=tuple(each for each in world.stages if each.stage != "backends"))
    world = with_launch(world, stages=("facts",))
    assert_status(backends.find_backend_failed, world, "skipped", id="bkd.gloo.works")


def test_an_exception_that_ended_a_stage_is_told_once_with_its_line() -> None:
    errors = tuple(
        RankError(rank, "bandwidth", "RuntimeError", "[enforce fail] out of buffers", (PROBE,))
        for rank in (1, 2)
    )
    world = with_stage(make_world(1, 4, errors=errors), "bandwidth", status="failed")
    found = assert_finds(backends.find_stage_error, world, code="BKD002")
    assert (
        "Stage bandwidth ended with RuntimeError on ranks 1-2: [enforce fail] out of buffers" in found.message
    )
    assert (found.where[0].line, found.where[0].role) == (88, "culprit")


def test_what_a_probe_has_reported_itself_is_not_reported_again() -> None:
    error = RankError(1, "backends", "ProbeError", "the first all_reduce of gloo failed: RuntimeError: no")
    world = fail_gloo(("1", "RuntimeError: no"))
    world = with_stage(replace(world, errors=(error,)), "backends", status="failed")
    assert_passes(backends.find_stage_error, world)
    assert_finds(backends.find_backend_failed, world, id="bkd.gloo.works")


def test_a_probe_error_that_nothing_else_tells_of_is_reported() -> None:
    error = RankError(1, "collectives", "ProbeError", "new_group of the even ranks failed: RuntimeError: no")
    assert_finds(backends.find_stage_error, make_world(1, 2, errors=(error,)), code="BKD002")


def test_missing_ranks_are_left_to_the_network_checks() -> None:
    error = RankError(0, "rendezvous", "DistStoreError", "Timed out after 31 seconds waiting for clients.")
    meeting = Rendezvous(0, "static", "a:1", 1, (0,), 2, RankSet([0]), 30.0, 30.0)
    world = make_world(1, 2, errors=(error,), rendezvous=(meeting,))
    assert_passes(backends.find_stage_error, world)


def test_a_time_out_is_blamed_on_the_rank_that_said_nothing() -> None:
    error = RankError(0, "ddp", "RuntimeError", "Timed out waiting 28000ms for recv operation to complete")
    world = make_world(1, 2, errors=(error,))
    failed = with_stage(world, "ddp", status="failed", finished=RankSet(), unfinished=RankSet([0, 1]))
    found = assert_finds(backends.find_stage_error, failed)
    assert (str(found.ranks), str(found.victims), found.confidence) == ("1", "0", "medium")
    assert found.message.endswith("; rank 1 left no result")
    cut = with_stage(failed, "ddp", status="cut")
    assert assert_finds(backends.find_stage_error, cut).role == "consequence"


def test_complaints_follow_from_a_rank_that_died() -> None:
    world = fail_gloo(("0-1,3", "RuntimeError: Connection closed by peer [127.0.0.1]:4242"))
    world = replace(world, exits=(RankExit(2, 4711, "backends", signal=9),))
    found = assert_finds(backends.find_backend_failed, world, id="bkd.gloo.works")
    assert (found.role, str(found.ranks), str(found.victims)) == ("consequence", "2", "0-1,3")
    assert found.message.endswith("; rank 2 had died")


def test_a_rank_that_was_killed_is_named_and_explains_the_cut_stage() -> None:
    gone = RankExit(2, 4711, "collectives", signal=9)
    world = with_stage(
        make_world(1, 4, exits=(gone,)),
        "collectives",
        status="cut",
        finished=RankSet(),
        unfinished=RankSet.span(4),
    )
    found = assert_finds(backends.find_rank_died, world, code="BKD002")
    assert found.message == "Rank 2 was killed by signal 9 (SIGKILL) in stage collectives, from outside."
    assert (str(found.ranks), str(found.victims), found.nodes) == ("2", "0-1,3", ("node-0",))
    assert "dmesg" in (found.fix[0].command or "")
    cut = assert_finds(backends.find_stage_timed_out, world, id="stage.collectives.in_time")
    assert "rank 2 was killed by signal 9 (SIGKILL)" in cut.message
    assert str(cut.ranks) == "2"
    assert codes_in_order(world)[:2] == [("BKD002", "cause"), ("BKD011", "consequence")]


def test_a_crash_asks_for_the_native_stack() -> None:
    gone = tuple(RankExit(rank, 4711, "ddp", signal=11, detail="Fatal Python error") for rank in (0, 1))
    found = assert_finds(backends.find_rank_died, make_world(1, 2, exits=gone))
    assert found.message.startswith("Ranks 0-1 were killed by signal 11 (SIGSEGV) (Fatal Python error)")
    assert "PYTHONFAULTHANDLER=1" in (found.fix[0].command or "")


def test_an_abort_after_the_clean_end_is_not_blamed() -> None:
    """gloo aborts ranks at interpreter exit while a DDP object lives; their results stand."""
    gone = RankExit(
        0, 4711, None, signal=6, finished=True, detail="terminate called without an active exception"
    )
    assert_passes(backends.find_rank_died, make_world(1, 2, exits=(gone,)))


def test_an_exit_whose_status_nobody_knows_is_said_so() -> None:
    found = assert_finds(backends.find_rank_died, make_world(1, 2, exits=(RankExit(1, 5, "ddp"),)))
    assert "Rank 1 is gone without a clean exit in stage ddp" in found.message


def test_devices_that_cannot_compute_are_named_with_their_text() -> None:
    world = make_gpu_world()
    full = SmokeResult(0, "cuda:1", False, error="OutOfMemoryError: CUDA out of memory.")
    world = replace(world, smoke=(world.smoke[0], full))
    found = assert_finds(backends.find_device_unusable, world, code="BKD002")
    assert "cuda:1 on node-0 could not run a small compute: OutOfMemoryError" in found.message
    assert (str(found.ranks), found.fix[0].command) == ("1", "nvidia-smi")


def test_an_agent_that_failed_before_any_rank_is_a_finding() -> None:
    reason = "torch's elastic agent failed: OSError: [Errno 24] Too many open files"
    world = with_stage(make_world(1, 2), "rendezvous", status="failed", reason=reason)
    found = assert_finds(backends.find_stage_error, world, code="BKD002", severity="error")
    assert found.message == f"Stage rendezvous failed on node-0: {reason}"
    assert found.confidence == "low"
    died = replace(world, exits=(RankExit(1, 5, "rendezvous", signal=9),))
    assert_passes(backends.find_stage_error, died)  # that rank is the finding
