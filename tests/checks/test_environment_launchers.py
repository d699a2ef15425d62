"""Contradictions between launchers (ENV006)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, RankSet, Rendezvous
from ddpdoctor.evidence.members import JobNode
from ddpdoctor.testing import assert_finds, assert_passes, judge_one, make_node, make_world
from ddpdoctor_checks.environment import find_launcher_conflict

SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


def in_shell(variables: dict[str, str], nodes: int = 1, nproc: int = 4, **launch: Any) -> Evidence:
    """Return a world whose nodes were all started from a shell with these variables."""
    world = make_world(nodes, nproc)
    facts = tuple(make_node(node, variables=variables) for node in range(nodes))
    return replace(world, nodes=facts, launch=replace(world.launch, **launch))


def test_more_tasks_than_fit_on_the_nodes() -> None:
    world = in_shell({"SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4"})
    found = assert_finds(find_launcher_conflict, world, code="ENV006", severity="warning")
    assert found.message == "On node-0, SLURM_NTASKS=16 is not SLURM_NNODES=2 x SLURM_NTASKS_PER_NODE=4."
    assert found.details["contradiction"] in found.message


def test_fewer_tasks_than_fit_is_a_step_of_a_larger_job() -> None:
    world = in_shell({"SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8"})
    assert_finds(find_launcher_conflict, world, severity="info")


@pytest.mark.parametrize("launcher", ["torchrun", "ddpdoctor"])
def test_srun_that_starts_one_launcher_per_gpu(launcher: str) -> None:
    variables = {**SLURM, "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}
    found = assert_finds(
        find_launcher_conflict, in_shell(variables, 2, launcher=launcher), severity="warning"
    )
    assert "8 times on 2 nodes" in found.message
    assert "each starts 4 ranks of its own" in found.message
    assert found.role == "cause"
    assert "srun --nodes 2 --ntasks-per-node 1" in (found.fix[0].command or "")


@pytest.mark.parametrize(
    "variables",
    [
        {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"},
        # An sbatch script that calls torchrun itself: Slurm's numbers describe the whole job.
        {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0", "SLURM_NTASKS": "8",
         "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "1"},
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4"},
        {"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4(x2)"},
    ],
    ids=["once per node", "batch script", "allocation", "not a number"],
)  # fmt: skip
def test_usual_ways_to_use_slurm_are_fine(variables: dict[str, str]) -> None:
    assert_passes(find_launcher_conflict, in_shell(variables, 2, launcher="torchrun"))


def test_srun_with_another_number_of_tasks_than_ranks() -> None:
    variables = {**SLURM, "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}
    world = in_shell(variables, 2, 2, launcher="srun")
    assert (
        "SLURM_STEP_NUM_TASKS=8, but the launch has 4 ranks"
        in assert_finds(find_launcher_conflict, world).message
    )
    assert_passes(find_launcher_conflict, in_shell(variables, 2, 4, launcher="srun"))


def test_launch_on_more_nodes_than_slurm_gave() -> None:
    found = assert_finds(find_launcher_conflict, in_shell({"SLURM_NNODES": "2"}, 3))
    assert "SLURM_NNODES=2, but the launch expects 3 nodes" in found.message
    assert_passes(find_launcher_conflict, in_shell({"SLURM_NNODES": "4"}, 3))


def test_mpirun_with_another_world_than_its_own() -> None:
    variables = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    found = assert_finds(find_launcher_conflict, in_shell(variables, 1, 4, launcher="mpirun"))
    assert "OMPI_COMM_WORLD_SIZE=8, but the launch has 4 ranks" in found.message
    assert_passes(find_launcher_conflict, in_shell(variables, 2, 4, launcher="mpirun"))


def test_mpirun_that_starts_torchrun_on_every_core() -> None:
    variables = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    found = assert_finds(find_launcher_conflict, in_shell(variables, 2, launcher="torchrun"))
    assert "mpirun started torchrun 4 times on one node" in found.message
    once = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    assert_passes(find_launcher_conflict, in_shell(once, 2, launcher="torchrun"))


@pytest.mark.parametrize(
    ("name", "value", "nodes", "severity"),
    [
        ("PET_NNODES", "2", 1, "info"),
        ("PET_NNODES", "2", 3, "warning"),
        ("PET_NPROC_PER_NODE", "8", 1, "info"),
    ],
)
def test_options_of_torchrun_that_the_command_line_overrode(
    name: str, value: str, nodes: int, severity: str
) -> None:
    found = assert_finds(find_launcher_conflict, in_shell({name: value}, nodes), severity=severity)
    assert f"{name}={value}" in found.message


@pytest.mark.parametrize(
    "variables",
    [{"PET_NNODES": "2"}, {"PET_NNODES": "1:4"}, {"PET_NPROC_PER_NODE": "auto"}, {"PET_NPROC_PER_NODE": "4"}],
)
def test_options_of_torchrun_that_agree(variables: dict[str, str]) -> None:
    assert_passes(find_launcher_conflict, in_shell(variables, 2))


def test_world_left_in_the_shell() -> None:
    world = in_shell({"WORLD_SIZE": "8", "RANK": "3"})
    found = assert_finds(find_launcher_conflict, world, severity="warning")
    assert found.message == (
        "On node-0, WORLD_SIZE=8 and RANK=3 are set in the shell, but this launch has 4 ranks."
    )
    assert found.role == "advice"
    assert (found.fix[0].command or "").startswith("unset RANK WORLD_SIZE")


def test_world_size_of_an_operator_counts_pods() -> None:
    world = in_shell({**POD, "WORLD_SIZE": "2", "RANK": "1"})
    found = assert_finds(find_launcher_conflict, world, severity="info")
    assert "count pods, not processes" in found.message
    assert "--nnodes $WORLD_SIZE --node-rank $RANK --nproc-per-node 4" in (found.fix[0].command or "")


def test_world_size_of_a_batch_script_is_a_note() -> None:
    assert_finds(find_launcher_conflict, in_shell({**SLURM, "WORLD_SIZE": "16"}), severity="info")


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "mpirun", "env"])
def test_world_size_that_the_launcher_itself_set_is_no_leftover(launcher: str) -> None:
    world = in_shell({"WORLD_SIZE": "8", "RANK": "0", "LOCAL_RANK": "0"}, 2, 4, launcher=launcher)
    assert_passes(find_launcher_conflict, world)


@pytest.mark.parametrize(("nodes", "launch"), [(1, {}), (2, {"launcher": "torchrun"})])
def test_stale_node_rank(nodes: int, launch: dict[str, Any]) -> None:
    found = assert_finds(
        find_launcher_conflict, in_shell({"NODE_RANK": "3"}, nodes, **launch), severity="warning"
    )
    assert "NODE_RANK=3" in found.message
    assert found.fix[0].command == "unset NODE_RANK"


def test_node_rank_of_another_node_with_a_static_rendezvous() -> None:
    world = in_shell({"NODE_RANK": "1"}, 2, rdzv_backend="static")
    found = assert_finds(find_launcher_conflict, world)
    assert found.nodes == ("node-0",)
    assert "NODE_RANK=1 is set in the shell, but --node-rank is another" in found.message
    assert found.ranks == RankSet.span(4)


def test_node_rank_that_fits() -> None:
    assert_passes(find_launcher_conflict, in_shell({"NODE_RANK": "0"}))
    world = in_shell({}, 2, rdzv_backend="static")
    nodes = tuple(make_node(node, variables={"NODE_RANK": str(node)}) for node in range(2))
    assert_passes(find_launcher_conflict, replace(world, nodes=nodes))


def test_contradiction_of_many_nodes_is_one_finding() -> None:
    found = assert_finds(find_launcher_conflict, in_shell({"NODE_RANK": "99"}, 20))
    assert "and 15 more" in found.message
    assert len(found.nodes) == 20


# MASTER_ADDR=localhost in a world of several nodes


def meeting(*endpoints: str, joined: tuple[int, ...] = (), nodes: int = 2) -> Evidence:
    """Return a world whose first nodes met at these endpoints."""
    rows = tuple(
        Rendezvous(
            node, "static", endpoint, nodes, joined, nodes * 2, RankSet(range(len(joined) * 2)), 60.0, 60.0,
            None if len(joined) == nodes else "nobody came",
        )
        for node, endpoint in enumerate(endpoints)
    )  # fmt: skip
    world = make_world(nodes, 2, rendezvous=rows)
    launch = replace(
        world.launch, rdzv_backend="static", master_addr="localhost", rdzv_endpoint="localhost:29500"
    )
    return replace(world, launch=launch)


@pytest.mark.parametrize("local", ["localhost:29500", "127.0.0.1:29500", "[::1]:29500"])
def test_every_node_that_waits_for_itself_is_named(local: str) -> None:
    found = assert_finds(find_launcher_conflict, meeting(local, local), severity="warning")
    assert "which is each node itself, in a job of 2 nodes" in found.message
    assert (found.role, found.confidence) == ("cause", "high")
    assert found.nodes == ("node-0", "node-1")
    assert "--master-addr node-0" in (found.fix[0].command or "")


def test_one_node_that_waits_for_itself_is_named() -> None:
    found = assert_finds(find_launcher_conflict, meeting("node-0:29500", "localhost:29500"))
    assert found.nodes == ("node-1",)
    assert found.ranks == RankSet([2, 3])


def test_first_node_alone_is_less_certain() -> None:
    assert assert_finds(find_launcher_conflict, meeting("localhost:29500")).confidence == "medium"


def test_loopback_on_the_hosting_node_only_is_how_operators_do_it() -> None:
    assert_passes(find_launcher_conflict, meeting("localhost:29500", "node-0:29500"))


def test_rendezvous_that_completed_over_the_loopback_is_fine() -> None:
    assert_passes(find_launcher_conflict, meeting("localhost:1", "localhost:1", joined=(0, 1)))


@pytest.mark.parametrize(("state", "fine"), [("told", True), ("closed", True), ("unwatched", False)])
def test_nodes_of_a_watched_job_that_met_over_the_loopback_are_fine(state: str, fine: bool) -> None:
    world = meeting("localhost:29500")
    members = (JobNode(0, "node-0", own=True, head=True, state="told"), JobNode(1, "node-1", state=state))
    launch = replace(world.launch, command="run", launcher="torchrun")
    seen = replace(world, launch=launch, members=members)
    if fine:
        assert_passes(find_launcher_conflict, seen)
        return
    command = assert_finds(find_launcher_conflict, seen).fix[0].command or ""
    assert command.startswith("ddpdoctor run --nnodes 2 ")
    assert command.endswith(" train.py")


def test_agents_on_one_machine_may_meet_over_the_loopback() -> None:
    world = meeting("localhost:1", "localhost:1")
    nodes = tuple(make_node(node, boot_id="same") for node in range(2))
    assert_passes(find_launcher_conflict, replace(world, nodes=nodes))


def test_single_node_may_meet_over_the_loopback() -> None:
    assert judge_one(find_launcher_conflict, make_world())[1] == []
