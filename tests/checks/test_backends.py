"""Backends, devices and stages: what fires, what must stay silent, what abstains."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import (
    BackendResult,
    Device,
    Evidence,
    Frame,
    Library,
    NodeFacts,
    RankError,
    RankExit,
    RankMessage,
    RankSet,
    Rendezvous,
    SmokeResult,
    StackClass,
    StageRecord,
)
from ddpdoctor.judge import Registry, order_findings, run_checks
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
    collect_checks,
    judge_one,
    make_node,
    make_rank,
    make_world,
)
from ddpdoctor_checks import backends, register
from ddpdoctor_checks.backends.hardware import APPLICATION_XIDS
from ddpdoctor_checks.backends.support import supports

H200 = "GPU-6b1f52b0-7f5c-7a8e-0b6e-aa00000000"
ARCHES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
"""torch.cuda.get_arch_list() of a torch 2.8 wheel for CUDA 12.8."""

PROBE = Frame("/home/u/ddpdoctor/launch/probes/collectives.py", 88, "probe_collectives")
WAIT = (
    Frame("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2810, "all_reduce"),
    PROBE,
)
SLEEP = (
    Frame("/data/model.py", 12, "factory"),
    Frame("/v/site-packages/torch/nn/parallel/distributed.py", 1, "f"),
)


def make_device(index: int, **changes: Any) -> Device:
    facts = Device(
        index,
        uuid=f"{H200}{index:02d}",
        name="NVIDIA H200",
        capability="9.0",
        driver="570.124.06",
        ecc_uncorrected=0,
        pci=f"00000000:{index:02x}:00.0",
        links={str(other): "NV18" for other in range(8) if other != index},
    )
    return replace(facts, **changes)


def make_gpu_world(nproc: int = 2, nodes: int = 1, **changes: Any) -> Evidence:
    """A healthy world of H200s over NCCL."""
    hosts = [
        make_node(
            node,
            devices=tuple(make_device(i, uuid=f"{H200}-{node}-{i}") for i in range(nproc)),
            versions={"python": "3.11.9", "torch": "2.8.0", "cuda": "12.8", "driver": "570.124.06"},
        )
        for node in range(nodes)
    ]
    size = nproc * nodes
    ranks = tuple(
        make_rank(
            rank,
            nproc,
            size,
            device=f"cuda:{rank % nproc}",
            device_uuid=f"{H200}-{rank // nproc}-{rank % nproc}",
            visible_devices=nproc,
            arch_list=ARCHES,
            versions={"python": "3.11.9", "torch": "2.8.0", "cuda": "12.8"},
        )
        for rank in range(size)
    )
    everyone = RankSet.span(size)
    smoke = tuple(
        SmokeResult(
            node,
            f"cuda:{i}",
            True,
            kind=kind,
            peer=f"cuda:{(i + 1) % nproc}" if kind == "peer-copy" else None,
        )
        for node in range(nodes)
        for i in range(nproc)
        for kind in ("compute", "copy", "peer-copy")
    )
    backend = (
        BackendResult(
            "nccl", True, "cuda:0", asked=True, group=everyone, collective=everyone, version="2.27.3"
        ),
        BackendResult("gloo", True, "cpu", group=everyone, collective=everyone),
        *(BackendResult(name, False, reason="not built into this torch") for name in ("mpi", "ucc", "xccl")),
    )
    world = make_world(hosts, nproc, ranks=ranks, smoke=smoke, backends=backend)
    world = replace(world, launch=replace(world.launch, backend="nccl"))
    return replace(world, **changes)


def with_launch(world: Evidence, **changes: Any) -> Evidence:
    return replace(world, launch=replace(world.launch, **changes))


def with_stage(world: Evidence, stage: str, **changes: Any) -> Evidence:
    return replace(
        world,
        stages=tuple(replace(each, **changes) if each.stage == stage else each for each in world.stages),
    )


def with_rank(world: Evidence, rank: int, **changes: Any) -> Evidence:
    return replace(
        world, ranks=tuple(replace(each, **changes) if each.rank == rank else each for each in world.ranks)
    )


def with_device(world: Evidence, index: int, **changes: Any) -> Evidence:
    node = world.nodes[0]
    devices = tuple(replace(each, **changes) if each.index == index else each for each in node.devices)
    return replace(world, nodes=(replace(node, devices=devices), *world.nodes[1:]))


def codes_in_order(evidence: Evidence) -> list[tuple[str, str]]:
    """Code and role of every finding of all built-in checks, root cause first."""
    registry = Registry()
    register(registry)
    _, findings = run_checks(registry.checks, evidence)
    return [(each.code, each.role) for each in order_findings(findings, registry.checks)]


@pytest.mark.parametrize("world", [make_world(1, 4), make_gpu_world(8), make_gpu_world(2, 3)])
def test_a_healthy_world_has_no_findings(world: Evidence) -> None:
    for function in vars(backends).values():
        if hasattr(function, "__ddpdoctor_checks__"):
            rows, findings = judge_one(function, world)
            assert findings == []
            assert {row.status for row in rows} <= {"pass", "skipped"}, rows


# -- BKD001 ----------------------------------------------------------------------------------------


def test_a_backend_that_is_not_built_names_what_is_usable() -> None:
    world = with_launch(make_world(1, 2), backend_asked="nccl", backend="nccl")
    found = assert_finds(backends.find_backend_unavailable, world, code="BKD001", severity="error")
    assert "nccl, is not built into this torch" in found.message
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
    assert "process group did not form" in found.message


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
        "not built into this torch"
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
    assert why == "stage backends was cut at its limit (after 30 s) before backend gloo had a result"


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
    assert "Rank 1 is gone without a clean end in stage ddp" in found.message


def test_devices_that_cannot_compute_are_named_with_their_text() -> None:
    world = make_gpu_world()
    full = SmokeResult(0, "cuda:1", False, error="OutOfMemoryError: CUDA out of memory.")
    world = replace(world, smoke=(world.smoke[0], full))
    found = assert_finds(backends.find_device_unusable, world, code="BKD002")
    assert "cuda:1 on node-0 could not do a small compute: OutOfMemoryError" in found.message
    assert (str(found.ranks), found.fix[0].command) == ("1", "nvidia-smi")


# -- BKD003 and BKD004 -----------------------------------------------------------------------------


def test_two_ranks_on_one_gpu_are_found_by_its_uuid() -> None:
    world = make_gpu_world(4)
    world = with_rank(world, 3, device_uuid=world.ranks[1].device_uuid)
    found = assert_finds(backends.find_device_shared, world, code="BKD003", severity="error")
    assert found.message == f"Ranks 1,3 on node-0 use one GPU: NVIDIA H200 1 ({H200}-0-1)."
    assert str(found.ranks) == "1,3"
    assert "set_device(local_rank)" in (found.fix[-1].code or "")


def test_equal_indices_of_different_gpus_are_no_sharing() -> None:
    world = make_gpu_world(4)
    ranks = tuple(
        replace(
            each, device="cuda:0", visible_devices=1, variables={"CUDA_VISIBLE_DEVICES": str(each.local_rank)}
        )
        for each in world.ranks
    )
    assert_passes(backends.find_device_shared, replace(world, ranks=ranks))


def test_a_trimmed_list_of_visible_devices_is_the_first_fix() -> None:
    world = make_gpu_world(2)
    ranks = tuple(
        replace(each, device="cuda:0", device_uuid=f"{H200}-0-0", variables={"CUDA_VISIBLE_DEVICES": "0"})
        for each in world.ranks
    )
    found = assert_finds(backends.find_device_shared, replace(world, ranks=ranks))
    assert found.fix[0].command == "unset CUDA_VISIBLE_DEVICES"


def test_sharing_without_nccl_is_a_warning() -> None:
    world = make_gpu_world(2)
    world = with_launch(with_rank(world, 1, device_uuid=f"{H200}-0-0"), backend="gloo")
    assert_finds(backends.find_device_shared, world, severity="warning")


def test_sharing_is_unknown_without_uuids_and_skipped_on_cpus() -> None:
    world = make_gpu_world(2)
    ranks = tuple(replace(each, device_uuid=None) for each in world.ranks)
    assert "ranks 0-1" in assert_status(backends.find_device_shared, replace(world, ranks=ranks), "unknown")
    assert_status(backends.find_device_shared, make_world(1, 2), "skipped")


def test_sharing_explains_that_nccl_fails() -> None:
    world = with_rank(make_gpu_world(2), 1, device_uuid=f"{H200}-0-0")
    text = "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
    failed = replace(
        world.backends[0],
        collective=RankSet(),
        failures=(RankMessage(RankSet.span(2), f"DistBackendError: {text}"),),
    )
    assert codes_in_order(replace(world, backends=(failed,)))[:2] == [
        ("BKD003", "cause"),
        ("BKD002", "consequence"),
    ]


def test_local_ranks_beyond_the_visible_devices_are_named_per_node() -> None:
    world = make_gpu_world(4, 2)
    ranks = tuple(
        replace(each, visible_devices=3, variables={"CUDA_VISIBLE_DEVICES": "0,1,2"})
        if each.node == 1
        else each
        for each in world.ranks
    )
    found = assert_finds(backends.find_device_out_of_range, replace(world, ranks=ranks), code="BKD004")
    assert found.message == (
        "Rank 7 on node-1 (local rank 3) has no GPU: 3 are visible there (CUDA_VISIBLE_DEVICES=0,1,2)."
    )
    assert (str(found.ranks), found.nodes) == ("7", ("node-1",))
    assert found.fix[0].command == "torchrun --nproc-per-node 3 train.py"


def test_devices_out_of_range_do_not_concern_cpu_ranks() -> None:
    world = make_world(1, 4)
    ranks = tuple(replace(each, visible_devices=1) for each in world.ranks)
    assert_status(backends.find_device_out_of_range, replace(world, ranks=ranks), "skipped")


# -- BKD005 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arches", "capability", "expected"),
    [
        (("sm_80",), "8.0", True),
        (("sm_80",), "8.6", True),  # same major, higher minor
        (("sm_86",), "8.0", False),  # lower minor
        (("sm_80",), "9.0", False),  # cubins do not cross majors
        (("sm_80", "compute_80"), "9.0", True),  # PTX does
        (("compute_90",), "8.9", False),
        (("sm_90a",), "9.0", True),
        (("sm_90a",), "9.1", False),  # architecture-specific
        (("sm_100f",), "10.3", True),
        (("sm_120",), "12.1", True),
        ((), "9.0", False),
        (("gfx90a", "gfx942"), "gfx942:sramecc+", True),
        (("gfx90a",), "gfx1100", False),
    ],
)
def test_compatibility_follows_nvidias_rules(
    arches: tuple[str, ...], capability: str, expected: bool
) -> None:
    assert supports(arches, capability) is expected


def without_smoke(world: Evidence) -> Evidence:
    return replace(world, smoke=())


def test_a_gpu_without_kernels_is_named_with_the_architectures() -> None:
    world = without_smoke(with_device(make_gpu_world(2), 1, name="Tesla K80", capability="3.7"))
    found = assert_finds(backends.find_device_unsupported, world, code="BKD005", severity="error")
    assert "Rank 1 on node-0 cannot use Tesla K80 (compute capability 3.7)" in found.message
    assert "sm_75, sm_80" in found.message
    assert str(found.ranks) == "1"


def test_an_old_driver_is_named_with_what_is_needed() -> None:
    world = make_gpu_world(2)
    devices = tuple(replace(each, driver="470.82.01") for each in world.nodes[0].devices)
    world = without_smoke(replace(world, nodes=(replace(world.nodes[0], devices=devices),)))
    found = assert_finds(backends.find_device_unsupported, world, code="BKD005")
    assert (
        "driver 470.82.01 is older than CUDA 12.8 of this torch allows (at least 525.60.13)" in found.message
    )
    assert "update the NVIDIA driver" in found.fix[0].text


def test_a_device_that_has_computed_is_supported_whatever_the_tables_say() -> None:
    """The cuda-compat package lets an older driver serve a newer runtime."""
    world = make_gpu_world(2)
    devices = tuple(replace(each, driver="470.82.01") for each in world.nodes[0].devices)
    assert_passes(
        backends.find_device_unsupported, replace(world, nodes=(replace(world.nodes[0], devices=devices),))
    )


def test_no_kernel_image_is_this_code_and_no_fault_of_the_device() -> None:
    text = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    world = replace(make_gpu_world(2), smoke=(SmokeResult(0, "cuda:1", False, error=text),))
    found = assert_finds(backends.find_device_unsupported, world, code="BKD005")
    assert "no kernel image" in found.message
    assert_passes(backends.find_device_unusable, world)
    assert_passes(backends.find_device_faulty, world)


def test_support_is_unknown_without_capability() -> None:
    world = make_gpu_world(2)
    devices = tuple(replace(each, capability=None) for each in world.nodes[0].devices)
    world = without_smoke(replace(world, nodes=(replace(world.nodes[0], devices=devices),)))
    assert_status(backends.find_device_unsupported, world, "unknown")


# -- BKD006 ----------------------------------------------------------------------------------------

WHEEL = "/v/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
OWN = Library("libnccl", WHEEL, "2.27.3", "loaded")
SYSTEM = Library("libnccl", "/usr/lib/x86_64-linux-gnu/libnccl.so.2.18.5", "2.18.5", "search-path")


def judge_libraries(*libraries: Library, **changes: Any) -> Evidence:
    world = make_gpu_world(2)
    return replace(world, nodes=(replace(world.nodes[0], libraries=libraries, **changes),))


def test_two_loaded_libraries_conflict() -> None:
    world = judge_libraries(OWN, replace(SYSTEM, source="loaded"))
    found = assert_finds(backends.find_library_conflict, world, code="BKD006", severity="warning")
    assert "two libraries are loaded" in found.message
    assert "2.27.3" in found.message
    assert "2.18.5" in found.message
    assert (found.nodes, str(found.ranks)) == (("node-0",), "0-1")


def test_two_wheels_that_overwrite_each_other_conflict() -> None:
    wheels = [Library("libnccl", WHEEL, version, "wheel") for version in ("2.21.5", "2.27.3")]
    found = assert_finds(backends.find_library_conflict, judge_libraries(*wheels))
    assert "two distributions" in found.message
    assert "torch==2.8.0" in (found.fix[0].command or "")


def test_a_loaded_library_that_is_not_torchs_own_conflicts() -> None:
    world = judge_libraries(replace(SYSTEM, source="loaded"), Library("libnccl", WHEEL, "2.27.3", "wheel"))
    found = assert_finds(backends.find_library_conflict, world)
    assert found.fix[0].command == "unset LD_LIBRARY_PATH LD_PRELOAD"


def test_a_search_path_that_comes_first_conflicts() -> None:
    variables = {"LD_LIBRARY_PATH": "/opt/x:/usr/lib/x86_64-linux-gnu/"}
    world = judge_libraries(SYSTEM, Library("libnccl", WHEEL, "2.27.3", "wheel"), variables=variables)
    assert "LD_LIBRARY_PATH puts" in assert_finds(backends.find_library_conflict, world).message


@pytest.mark.parametrize(
    "libraries",
    [
        (OWN,),
        (OWN, SYSTEM),  # lies there, nothing loads it
        (replace(SYSTEM, source="loaded"),),  # a torch built against the system's
        (
            OWN,
            Library("libnccl-net", "/opt/aws/lib/libnccl-net.so", "1.9", "loaded"),
        ),  # a plug-in, no second NCCL
        (OWN, replace(OWN, path=WHEEL.replace("/lib/libnccl", "/lib/./libnccl"))),  # one file
    ],
)
def test_one_library_in_use_is_no_conflict(libraries: tuple[Library, ...]) -> None:
    assert_passes(backends.find_library_conflict, judge_libraries(*libraries))


def test_a_conflict_that_no_rank_uses_is_a_note() -> None:
    world = with_launch(judge_libraries(OWN, replace(SYSTEM, source="loaded")), backend="gloo")
    assert_finds(backends.find_library_conflict, world, severity="info")


def test_machines_without_nccl_are_skipped() -> None:
    assert_status(backends.find_library_conflict, make_world(1, 2), "skipped")


# -- BKD007 and BKD010 -----------------------------------------------------------------------------


def test_a_copy_that_returns_other_bytes_names_the_pair() -> None:
    world = make_gpu_world(4)
    bad = SmokeResult(
        0, "cuda:1", False, kind="peer-copy", peer="cuda:3", error="copy: 512 of 8388608 elements differ"
    )
    world = replace(world, smoke=(*world.smoke, bad))
    found = assert_finds(backends.find_peer_copy_broken, world, code="BKD007", severity="error")
    assert found.pairs == (("node-0 cuda:1", "node-0 cuda:3"),)
    assert (str(found.ranks), found.fix[0].command) == ("1,3", "export NCCL_P2P_DISABLE=1")
    assert_passes(backends.find_device_faulty, world)
    assert_passes(backends.find_device_unusable, world)


def test_nccl_that_works_only_without_peers_is_this_and_not_merely_a_failure() -> None:
    world = make_gpu_world(2)
    failed = replace(
        world.backends[0],
        collective=RankSet(),
        failures=(RankMessage(RankSet.span(2), "DistBackendError: unhandled cuda error"),),
        peer_to_peer_off=RankSet.span(2),
    )
    world = replace(world, backends=(failed,))
    found = assert_finds(backends.find_peer_copy_broken, world, code="BKD007")
    assert "passes there with NCCL_P2P_DISABLE=1" in found.message
    assert found.pairs == (("node-0 cuda:0", "node-0 cuda:1"),)
    assert codes_in_order(world)[:2] == [("BKD007", "cause"), ("BKD002", "consequence")]


def test_nccl_that_fails_without_peers_too_is_not_blamed_on_them() -> None:
    world = make_gpu_world(2)
    failed = replace(
        world.backends[0],
        failures=(RankMessage(RankSet.span(2), "DistBackendError: no"),),
        peer_to_peer_off=RankSet([0]),
    )
    assert_passes(backends.find_peer_copy_broken, replace(world, backends=(failed,)))


def test_copies_that_were_not_tried_are_unknown_and_one_gpu_is_skipped() -> None:
    world = make_gpu_world(2)
    assert_status(backends.find_peer_copy_broken, replace(world, smoke=world.smoke[:1]), "unknown")
    single = make_gpu_world(1)
    assert_status(backends.find_peer_copy_broken, replace(single, smoke=single.smoke[:1]), "skipped")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ecc_uncorrected": 2}, "2 uncorrectable ECC errors"),
        ({"xid": ("Xid 79, pid='<unknown>', GPU has fallen off the bus. (1 h ago)",)}, "fallen off the bus"),
        ({"xid": ("NVRM: Xid (PCI:0000:3b:00): 48, pid=77, DBE",)}, "Xid (PCI:0000:3b:00): 48"),
        ({"state": "[GPU requires reset]"}, "nvidia-smi says [GPU requires reset]"),
        (
            {"state": "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error"},
            "Unknown Error",
        ),
        ({"state": "ERR!"}, "ERR!"),
    ],
)
def test_signs_of_a_faulty_device(changes: dict[str, Any], words: str) -> None:
    found = assert_finds(
        backends.find_device_faulty,
        with_device(make_gpu_world(2), 1, **changes),
        code="BKD010",
        severity="error",
    )
    assert words in found.message
    assert found.message.startswith("GPU 1 (NVIDIA H200")
    assert (found.nodes, str(found.ranks)) == (("node-0",), "1")
    assert found.fix[1].command == "sudo nvidia-smi --gpu-reset -i 1"


def test_contained_and_unknown_xids_are_warnings() -> None:
    for number in (63, 94, 9999):
        world = with_device(make_gpu_world(2), 0, xid=(f"Xid {number}, pid=1",))
        assert_finds(backends.find_device_faulty, world, code="BKD010", severity="warning")


@pytest.mark.parametrize("number", sorted(APPLICATION_XIDS))
def test_xids_that_a_program_raises_say_nothing_of_the_device(number: int) -> None:
    assert_passes(
        backends.find_device_faulty, with_device(make_gpu_world(2), 0, xid=(f"Xid {number}, pid=1",))
    )


def test_permissions_that_hide_counters_are_no_fault() -> None:
    world = with_device(make_gpu_world(2), 0, ecc_uncorrected=None, state="[Insufficient Permissions]")
    assert_passes(backends.find_device_faulty, world)


def test_a_process_that_cannot_be_killed_is_a_faulty_device() -> None:
    world = make_gpu_world(2)
    stuck = SmokeResult(0, "cuda:1", False, error="no answer", killable=False)
    found = assert_finds(backends.find_device_faulty, replace(world, smoke=(stuck,)), code="BKD010")
    assert "did not die of SIGKILL" in found.message
    assert str(found.ranks) == "1"


def test_a_processor_that_computes_wrongly_is_a_fault_too() -> None:
    bad = SmokeResult(
        0, "cpu", False, error="product of two matrices: 3 of 65536 elements differ, the first at 4"
    )
    found = assert_finds(backends.find_device_faulty, make_world(1, 2, smoke=(bad,)), code="BKD010")
    assert "65536 elements differ" in found.message
    assert str(found.ranks) == "0-1"


# -- BKD011 ----------------------------------------------------------------------------------------


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
        "Stage collectives was cut at its limit of 30 s: ranks 1-3 did not finish, rank 0 had; ranks 1,3 in "
        "all_reduce"
    )
    assert "from probe_collectives (launch/probes/collectives.py:88)" in found.message
    assert (str(found.ranks), str(found.victims)) == ("2", "1,3")
    assert [(each.role, each.file, each.line) for each in found.where] == [
        ("culprit", "/data/model.py", 12),
        ("victim", PROBE.file, 88),
    ]
    stacks = found.details["stacks"]
    assert [each["waiting"] for each in stacks] == [True, False]
    assert found.fix[-1].command == "ddpdoctor check --stage-timeout collectives=120"
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
    assert [row.status for row in rows] == ["pass"] * 5 + ["fail", "unknown", "unknown"]
    assert rows[-1].reason == reason


def test_a_stage_that_failed_in_time_is_in_time() -> None:
    assert_passes(
        backends.find_stage_timed_out,
        with_stage(make_world(1, 2), "ddp", status="failed", reason="an error"),
        id="stage.ddp.in_time",
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
    assert found.message == "Stage facts was cut at its limit of 30 s on node-1."


# -- scale -----------------------------------------------------------------------------------------


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
    assert time.perf_counter() - started < 10  # the bar for the whole judgement
    assert {each.code for each in findings} == {"BKD003", "BKD011"}
    assert "error" not in {row.status for row in rows}
    shared = next(each for each in findings if each.code == "BKD003")
    assert str(shared.ranks) == "9000-9001"


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
    assert time.perf_counter() - started < 10
    assert len(faulty) == len(shared) == 9
    assert len(faulty[-1].nodes) == 2047  # the first node's eight devices are told one by one
    assert len(shared[-1].ranks) == 2040 * 8
    assert faulty[-1].message.startswith("The same holds 16,376 more times on node-1, node-2")


def test_a_node_without_facts_still_has_a_name() -> None:
    stuck = SmokeResult(3, "cuda:0", False, killable=False)
    world = replace(make_world(1, 2, smoke=(stuck,)), nodes=(NodeFacts(0, "a"),))
    assert "node 3" in assert_finds(backends.find_device_faulty, world).message
