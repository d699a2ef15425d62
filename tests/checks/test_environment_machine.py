"""Limits, threads, settings, clocks and leftovers of a machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Absent, Cpus, Device, Evidence, Launch, Leftover, Limits, RankSet, SharedMemory
from ddpdoctor.evidence.members import JobNode
from ddpdoctor.testing import assert_finds, assert_passes, assert_status, judge_one, make_node, make_world
from ddpdoctor_checks.environment import (
    find_clocks_differ,
    find_debug_left_on,
    find_locked_memory_low,
    find_open_files_low,
    find_orphaned_ranks,
    find_shared_memory_small,
    find_threads_oversubscribed,
    find_workaround_left_on,
)

MIB = 1 << 20
GPUS = (Device(0, "GPU-a"), Device(1, "GPU-b"))


def on_node(nproc: int = 4, nodes: int = 1, launch: dict[str, Any] | None = None, **facts: Any) -> Evidence:
    """Return a world whose nodes all have these facts."""
    world = make_world(nodes, nproc)
    return replace(
        world,
        nodes=tuple(make_node(node, **facts) for node in range(nodes)),
        launch=replace(world.launch, **(launch or {})),
    )


@pytest.mark.parametrize(
    "function",
    [find_shared_memory_small, find_open_files_low, find_locked_memory_low, find_threads_oversubscribed,
     find_clocks_differ, find_orphaned_ranks, find_workaround_left_on, find_debug_left_on],
)  # fmt: skip
def test_machines_that_nobody_looked_at_are_unknown(function: Any) -> None:
    blind = Evidence(absent={"nodes": Absent("stage was cut"), "ranks": Absent("stage was cut")})
    assert "stage was cut" in assert_status(function, blind, "unknown")


# ENV008


def shm(total: int, free: int | None = None, **facts: Any) -> Evidence:
    return on_node(shared_memory=SharedMemory(total, total if free is None else free), **facts)


def test_shared_memory_that_nccl_finds_too_small() -> None:
    found = assert_finds(
        find_shared_memory_small, shm(64 * MIB, devices=GPUS), code="ENV008", severity="warning"
    )
    assert found.message == (
        "/dev/shm on node-0 has 64 MiB, 64 MiB of it free; NCCL and DataLoader workers need 1 GiB."
    )
    assert (found.details["total"], found.details["need"]) == (64 * MIB, 1 << 30)
    assert "sudo mount -o remount,size=8g /dev/shm" in [fix.command for fix in found.fix]


def test_container_is_not_told_to_remount() -> None:
    found = assert_finds(find_shared_memory_small, shm(64 * MIB, devices=GPUS, container="docker"))
    assert all("mount -o" not in (fix.command or "") for fix in found.fix)
    assert "--shm-size" in (found.fix[0].command or "")


def test_shared_memory_without_room_for_one_worker_is_a_warning() -> None:
    assert_finds(find_shared_memory_small, shm(4 * MIB), severity="warning")


def test_default_of_a_container_without_gpus_is_a_note() -> None:
    found = assert_finds(find_shared_memory_small, shm(64 * MIB), severity="info")
    assert "a DataLoader worker in each of 4 ranks needs 147 MiB" in found.message


def test_shared_memory_that_leftovers_fill_is_a_warning() -> None:
    found = assert_finds(find_shared_memory_small, shm(8 << 30, 2 * MIB), severity="warning")
    assert found.fix[0].command == "ls -la /dev/shm"


def test_more_ranks_than_cores_need_no_more_workers() -> None:
    assert_passes(
        find_shared_memory_small,
        on_node(64, shared_memory=SharedMemory(128 * MIB, 128 * MIB), cpus=Cpus(2, 2)),
    )


@pytest.mark.parametrize("total", [256 * MIB, 24 << 30])
def test_larger_shared_memory_passes(total: int) -> None:
    assert_passes(find_shared_memory_small, shm(total))


def test_shared_memory_of_many_nodes_is_one_finding() -> None:
    world = on_node(2, 40, shared_memory=SharedMemory(MIB, MIB))
    assert len(assert_finds(find_shared_memory_small, world).nodes) == 40


def test_shared_memory_that_is_not_known_is_unknown() -> None:
    assert_status(find_shared_memory_small, on_node(shared_memory=None), "unknown")


# ENV009


def files(limit: int | None, hard: int | None = None, size: int = 4, **launch: Any) -> Evidence:
    return on_node(limits=Limits(limit, hard), launch={"world_size": size, **launch})


def test_low_limit_of_open_files_gets_the_command_that_the_hard_limit_allows() -> None:
    found = assert_finds(find_open_files_low, files(256, 4096), code="ENV009", severity="warning")
    assert "may open 256 files" in found.message
    assert found.fix[0].command == "ulimit -n 4096"
    assert (found.details["limit"], found.details["need"]) == (256, 264)


def test_hard_limit_that_is_too_low_itself_has_to_be_raised() -> None:
    found = assert_finds(find_open_files_low, files(256, 256))
    assert "limits.conf" in (found.fix[0].command or "")


@pytest.mark.parametrize(
    ("limit", "size", "backend", "found"),
    [(1024, 384, "gloo", 0), (1024, 385, "gloo", 1), (1024, 512, "nccl", 0), (1024, 1024, "nccl", 1),
     (1024, 64, "gloo", 0), (None, 16384, "gloo", 0)],
)  # fmt: skip
def test_need_of_open_files_grows_with_the_world(
    limit: int | None, size: int, backend: str, found: int
) -> None:
    assert len(judge_one(find_open_files_low, files(limit, size=size, backend=backend))[1]) == found


def test_limit_of_open_files_that_is_not_known_is_unknown() -> None:
    assert_status(find_open_files_low, on_node(limits=None), "unknown")


# ENV010


def test_low_limit_of_locked_memory_beside_rdma_devices() -> None:
    world = on_node(limits=Limits(locked_memory=8 * MIB), rdma_devices=("mlx5_0",), devices=GPUS)
    found = assert_finds(find_locked_memory_low, world, code="ENV010", severity="warning")
    assert "may lock 8 MiB of memory, although it has mlx5_0 for RDMA" in found.message
    assert found.fix[0].command == "ulimit -l unlimited"


def test_low_limit_of_locked_memory_without_gpus_is_a_note() -> None:
    world = on_node(limits=Limits(locked_memory=8 * MIB), rdma_devices=("mlx5_0",))
    assert_finds(find_locked_memory_low, world, severity="info")


@pytest.mark.parametrize("limit", [None, 512 * MIB])
def test_enough_locked_memory_passes(limit: int | None) -> None:
    assert_passes(
        find_locked_memory_low, on_node(limits=Limits(locked_memory=limit), rdma_devices=("mlx5_0",))
    )


def test_locked_memory_does_not_matter_without_rdma() -> None:
    world = on_node(limits=Limits(locked_memory=65536))
    assert assert_status(find_locked_memory_low, world, "skipped") == "no RDMA devices"


def test_locked_memory_that_is_not_known_is_unknown() -> None:
    assert_status(find_locked_memory_low, on_node(limits=None, rdma_devices=("mlx5_0",)), "unknown")


# ENV011


def threads(
    each: int, cpus: Cpus, nproc: int = 4, omp: str | None = None, device: str = "cpu", **launch: Any
) -> Evidence:
    variables = {} if omp is None else {"OMP_NUM_THREADS": omp}
    world = on_node(nproc, cpus=cpus, variables=variables, launch=launch)
    return replace(world, ranks=tuple(replace(rank, threads=each, device=device) for rank in world.ranks))


def test_world_that_ddpdoctor_sized_is_a_note() -> None:
    found = assert_finds(find_threads_oversubscribed, threads(2, Cpus(2, 2)), code="ENV011", severity="info")
    assert found.message == "4 ranks x 2 threads are 8 on 2 cores of node-0."
    assert found.fix[0].command == "export OMP_NUM_THREADS=1"
    assert (found.details["cores"], found.details["product"]) == (2.0, 8)


@pytest.mark.parametrize("how", [{"omp": "8"}, {"launcher": "torchrun"}, {"launcher": "srun"}])
def test_what_holds_for_real_runs_too_is_a_warning(how: dict[str, Any]) -> None:
    assert_finds(find_threads_oversubscribed, threads(8, Cpus(8, 8), **how), severity="warning")


def test_quota_of_a_container_counts_as_cores() -> None:
    found = assert_finds(find_threads_oversubscribed, threads(16, Cpus(64, 64, quota=2.5), 1))
    assert "1 rank x 16 threads are 16 on 2.5 cores (a cgroup quota on 64)" in found.message
    assert found.fix[0].command == "export OMP_NUM_THREADS=2"


def test_more_ranks_than_cores_are_told_apart_from_threads() -> None:
    found = assert_finds(find_threads_oversubscribed, threads(1, Cpus(2, 2), 64))
    assert [fix.command for fix in found.fix] == ["ddpdoctor check --nproc 2"]


@pytest.mark.parametrize(
    ("each", "nproc", "cpus"),
    [(16, 4, Cpus(64, 64)), (16, 4, Cpus(64, 32)), (1, 4, Cpus(2, 2)), (1, 1, Cpus(1, 1))],
)
def test_up_to_two_threads_a_core_pass(each: int, nproc: int, cpus: Cpus) -> None:
    assert_passes(find_threads_oversubscribed, threads(each, cpus, nproc))


def test_variable_of_the_shell_counts_where_torch_starts_fewer() -> None:
    """torch with MKL starts no more threads than there are cores; what else reads the variable does."""
    found = assert_finds(
        find_threads_oversubscribed, threads(2, Cpus(2, 2), 2, omp="64"), code="ENV011", severity="warning"
    )
    assert found.message == (
        "OMP_NUM_THREADS=64 asks for 128 threads in 2 ranks on 2 cores of node-0; torch itself starts 2 in each."
    )
    assert found.fix[0].command == "export OMP_NUM_THREADS=1"


@pytest.mark.parametrize("omp", ["1", "2", "3,2", "many", ""])
def test_variable_that_asks_for_no_more_than_the_cores_bear_is_nothing(omp: str) -> None:
    assert_passes(find_threads_oversubscribed, threads(1, Cpus(3, 3), 2, omp=omp))


def test_ranks_that_are_bound_each_to_cores_of_its_own_have_them_all() -> None:
    """mpirun and srun bind: the launching process, itself a rank, may use one core of the eight."""
    world = threads(1, Cpus(8, 1), 8, launcher="mpirun")
    bound = tuple(replace(rank, cores=RankSet([rank.rank])) for rank in world.ranks)
    assert_passes(find_threads_oversubscribed, replace(world, ranks=bound))
    assert_finds(find_threads_oversubscribed, world, severity="warning")


def test_nodes_on_one_machine_share_its_cores() -> None:
    """Two agents of torchrun side by side: each is a node, and neither leaves the cores of the other idle."""
    nodes = [make_node(number, boot_id="one", cpus=Cpus(2, 2)) for number in range(2)]
    world = make_world(nodes, nproc=1)
    world = replace(world, launch=replace(world.launch, launcher="torchrun"))
    ranks = tuple(replace(rank, threads=1) for rank in world.ranks)
    assert_passes(find_threads_oversubscribed, replace(world, ranks=ranks))
    many = replace(world, ranks=tuple(replace(rank, threads=3) for rank in world.ranks))
    found = assert_finds(find_threads_oversubscribed, many)
    assert found.message == "2 ranks x 3 threads are 6 on 2 cores of node-0 and node-1."


def test_idle_cores_under_torchrun_on_the_cpu_are_a_warning() -> None:
    found = assert_finds(
        find_threads_oversubscribed,
        threads(1, Cpus(64, 64), omp="1", launcher="torchrun"),
        severity="warning",
    )
    assert found.message == "4 ranks with OMP_NUM_THREADS=1 use 4 of 64 cores on node-0."
    assert found.fix[0].command == "export OMP_NUM_THREADS=16"


@pytest.mark.parametrize("how", [{"omp": "1"}, {"launcher": "torchrun", "device": "cuda:0"}])
def test_idle_cores_that_may_be_meant_are_a_note(how: dict[str, Any]) -> None:
    assert_finds(find_threads_oversubscribed, threads(1, Cpus(64, 64), **how), severity="info")


def test_idle_cores_of_a_tiny_world_are_nothing() -> None:
    assert_passes(find_threads_oversubscribed, threads(1, Cpus(64, 64)))


def test_threads_of_the_environment_count_where_no_rank_reported() -> None:
    world = threads(1, Cpus(2, 2), omp="8,2")
    found = assert_finds(find_threads_oversubscribed, replace(world, ranks=()))
    assert "4 ranks x 8 threads" in found.message


def test_cores_that_are_not_known_are_unknown() -> None:
    assert_status(find_threads_oversubscribed, on_node(cpus=None), "unknown")


def test_threads_of_ranks_that_were_not_asked_for_are_no_question() -> None:
    world = replace(on_node(cpus=None), ranks=())
    stages = tuple(
        replace(each, status="skipped", reason="not selected") if each.stage == "rendezvous" else each
        for each in world.stages
    )
    assert (
        assert_status(find_threads_oversubscribed, replace(world, stages=stages), "skipped") == "not selected"
    )


# ENV013 and ENV014


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"), ("NCCL_P2P_LEVEL", "LOC")]
)
def test_workaround_between_gpus_is_named(name: str, value: str) -> None:
    world = on_node(variables={name: value}, devices=GPUS)
    found = assert_finds(find_workaround_left_on, world, code="ENV013", severity="warning")
    assert f"{name}={value}" in found.message
    assert found.fix[0].command == f"unset {name}"
    assert_finds(find_workaround_left_on, on_node(variables={name: value}), severity="info")


@pytest.mark.parametrize(("name", "value"), [("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket")])
def test_workaround_of_rdma_matters_where_there_is_rdma(name: str, value: str) -> None:
    settings = {name: value}
    assert_finds(
        find_workaround_left_on, on_node(variables=settings, rdma_devices=("mlx5_0",)), severity="warning"
    )
    found = assert_finds(find_workaround_left_on, on_node(variables=settings, devices=GPUS), severity="info")
    assert "makes no difference here" in found.message


@pytest.mark.parametrize(
    "settings",
    [{"NCCL_P2P_DISABLE": "0"}, {"NCCL_P2P_LEVEL": "NVL"}, {"NCCL_NET": "IB"}, {"NCCL_DEBUG": "INFO"},
     {"NCCL_SOCKET_IFNAME": "eth0"}, {"NCCL_NVLS_ENABLE": "1"}, {}],
)  # fmt: skip
def test_settings_that_switch_nothing_off_pass(settings: dict[str, str]) -> None:
    assert_passes(
        find_workaround_left_on, on_node(variables=settings, devices=GPUS, rdma_devices=("mlx5_0",))
    )


def test_setting_of_some_ranks_names_these_ranks() -> None:
    world = on_node(devices=GPUS)
    odd = replace(world.ranks[2], variables={"NCCL_P2P_DISABLE": "1"})
    found = assert_finds(find_workaround_left_on, replace(world, ranks=(*world.ranks[:2], odd)))
    assert found.ranks == RankSet([2])


def test_debug_setting_that_crashes_gloo_is_a_warning_anywhere() -> None:
    found = assert_finds(
        find_debug_left_on,
        on_node(variables={"TORCH_DISTRIBUTED_DEBUG": "detail"}),
        code="ENV014",
        severity="warning",
    )
    assert "TORCH_DISTRIBUTED_DEBUG=detail" in found.message


@pytest.mark.parametrize("name", ["CUDA_LAUNCH_BLOCKING", "TORCH_NCCL_BLOCKING_WAIT"])
def test_debug_setting_of_gpus_matters_where_there_are_gpus(name: str) -> None:
    assert_finds(find_debug_left_on, on_node(variables={name: "1"}, devices=GPUS[:1]), severity="warning")
    assert_finds(find_debug_left_on, on_node(variables={name: "1"}), severity="info")


@pytest.mark.parametrize(
    "settings",
    [{"TORCH_DISTRIBUTED_DEBUG": "INFO"}, {"NCCL_DEBUG": "INFO"}, {"CUDA_LAUNCH_BLOCKING": "0"},
     {"TORCH_SHOW_CPP_STACKTRACES": "1"}, {"PYTHONFAULTHANDLER": "1"}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}],
)  # fmt: skip
def test_harmless_settings_pass(settings: dict[str, str]) -> None:
    assert_passes(find_debug_left_on, on_node(variables=settings, devices=GPUS))


# ENV015


def clocks(*offsets: float | None, error: float = 0.001) -> Evidence:
    world = make_world(len(offsets), 2)
    nodes = tuple(
        make_node(node, clock_offset_s=offset, clock_error_s=error) for node, offset in enumerate(offsets)
    )
    return replace(world, nodes=nodes)


def test_clocks_that_are_apart_are_named_with_their_offsets() -> None:
    found = assert_finds(find_clocks_differ, clocks(0.0, 3.25, -900.0), code="ENV015", severity="warning")
    assert found.message == "Clocks differ from node-0's: node-2 15 min behind and node-1 3.2 s ahead."
    assert found.nodes == ("node-1", "node-2")
    assert found.details["offsets_s"] == {"node-1": 3.25, "node-2": -900.0}


def watched_clocks(*offsets: float | None, head: int = 0) -> Evidence:
    """A job on several nodes under ``run``: no machine was examined."""
    members = tuple(
        JobNode(
            node,
            f"host-{node}",
            RankSet([node]),
            head=node == head,
            clock_offset_s=offset,
            clock_error_s=0.01,
        )
        for node, offset in enumerate(offsets)
    )
    launch = Launch(command="run", nnodes=len(offsets), nproc=1, world_size=len(offsets))
    absent = {"nodes": Absent("`run` watches the job", applicable=False)}
    return Evidence(launch=launch, members=members, absent=absent)


@pytest.mark.parametrize(("offsets", "head"), [((0.0, 3.25, None), 0), ((-3.0, 3.25, 0.0), 2)])
def test_clocks_of_a_watched_job_are_compared(offsets: tuple[float | None, ...], head: int) -> None:
    found = assert_finds(
        find_clocks_differ, watched_clocks(*offsets, head=head), code="ENV015", severity="warning"
    )
    assert found.message.startswith(f"Clocks differ from host-{head}'s: ")
    assert "host-1 3.2 s ahead" in found.message
    assert "host-1" in found.nodes
    assert f"host-{head}" not in found.nodes


def test_clocks_of_a_watched_job_that_agree_or_that_nobody_compared_are_not_told() -> None:
    assert_passes(find_clocks_differ, watched_clocks(0.0, 0.5))
    assert_status(find_clocks_differ, watched_clocks(0.0, None), "skipped")
    assert_status(find_clocks_differ, watched_clocks(0.0), "skipped")


def test_clocks_that_agree_within_a_second_pass() -> None:
    assert_passes(find_clocks_differ, clocks(0.0, 0.9, -0.9))


def test_offset_within_the_error_of_its_measurement_passes() -> None:
    assert_passes(find_clocks_differ, clocks(0.0, 3.0, error=2.5))


def test_clocks_that_were_not_compared_are_unknown() -> None:
    assert_status(find_clocks_differ, clocks(0.0, None), "unknown")
    assert_status(find_clocks_differ, make_world(), "skipped")


# ENV016


def leftover(pid: int, **changes: Any) -> Leftover:
    return replace(Leftover(pid, 1, 7200.0, "python train.py", rank=str(pid % 10)), **changes)


def test_orphans_are_named_with_what_they_hold() -> None:
    orphans = (leftover(4240, ports=(29500,)), leftover(4241, devices=("cuda:1",), age_s=7000.0))
    found = assert_finds(find_orphaned_ranks, on_node(leftovers=orphans), code="ENV016", severity="warning")
    assert found.message == (
        "On node-0 2 ranks of an earlier job still run, processes 4240 (rank 0) and 4241 (rank 1), "
        "up to 2.0 h old, and hold 1 port (29500) and cuda:1."
    )
    assert [fix.command for fix in found.fix] == ["kill 4240 4241", "kill -9 4240 4241"]
    assert found.role == "cause"  # the port is the one that this launch wants


def test_orphan_that_holds_nothing_of_ours_is_advice() -> None:
    found = assert_finds(find_orphaned_ranks, on_node(leftovers=(leftover(4240, ports=(1234,)),)))
    assert found.role == "advice"
    assert "1 rank of an earlier job still runs, process 4240 (rank 0), 2.0 h old, and holds" in found.message


def test_ranks_of_this_world_and_of_living_jobs_are_no_orphans() -> None:
    ours, living = leftover(1000), leftover(5000, orphaned=False)
    assert_passes(find_orphaned_ranks, on_node(leftovers=(ours, living)))


def test_processes_that_could_not_be_scanned_are_unknown() -> None:
    world = on_node(leftovers_note="the scan of processes did not finish in time")
    assert (
        assert_status(find_orphaned_ranks, world, "unknown") == "the scan of processes did not finish in time"
    )
