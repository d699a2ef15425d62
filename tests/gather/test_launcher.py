"""Launchers are told by their variables; shells inside allocations are no ranks."""

from __future__ import annotations

import pytest

from ddpdoctor.gather.launcher import detect_launcher

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "job7",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


def test_nothing_set_is_no_launcher() -> None:
    found = detect_launcher({"PATH": "/bin", "HOME": "/root"})
    assert (found.launcher, found.is_rank, found.missing, found.contradictions) == ("none", False, (), ())


def test_torchrun_states_everything() -> None:
    found = detect_launcher(TORCHRUN)
    assert found.launcher == "torchrun"
    assert (found.rank, found.local_rank, found.world_size, found.local_world_size) == (5, 1, 8, 4)
    assert (found.node_rank, found.nnodes, found.master_addr, found.master_port) == (1, 2, "node0", 29500)
    assert found.run_id == "job7"
    assert (found.missing, found.contradictions, found.derived) == ((), (), {})


def test_torchrun_inside_srun_is_torchrun() -> None:
    found = detect_launcher({**SRUN, "SLURM_STEP_NUM_TASKS": "2", **TORCHRUN})
    assert found.launcher == "torchrun"
    assert found.contradictions == ()


def test_srun_that_started_torchrun_once_per_task_is_a_contradiction() -> None:
    found = detect_launcher({**SRUN, **TORCHRUN})
    assert any("srun started torchrun 7 times on 2 nodes" in line for line in found.contradictions)


def test_stale_run_id_alone_is_no_rank() -> None:
    found = detect_launcher({"TORCHELASTIC_RUN_ID": "old"})
    assert found.launcher == "none"
    assert found.missing == ("RANK", "WORLD_SIZE")


def test_srun_gives_ranks_and_the_master_is_derived() -> None:
    found = detect_launcher(SRUN)
    assert found.launcher == "srun"
    assert (found.rank, found.local_rank, found.world_size) == (5, 1, 7)
    assert (found.local_world_size, found.node_rank, found.nnodes) == (3, 1, 2)
    assert found.master_addr == "gpu07"
    assert found.master_port in range(15000, 25000)
    assert set(found.derived) == {"master_addr", "master_port"}
    assert found.missing == ()


def test_all_tasks_of_a_step_derive_one_port() -> None:
    other = detect_launcher({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert other.master_port == detect_launcher(SRUN).master_port
    assert other.master_addr == detect_launcher(SRUN).master_addr


def test_master_that_is_set_goes_before_a_derived_one() -> None:
    found = detect_launcher({**SRUN, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "30000"})
    assert (found.master_addr, found.master_port, found.derived) == ("10.0.0.9", 30000, {})


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": "4294967291"},  # batch script
        {"SLURM_STEP_ID": "4294967290"},  # interactive step of salloc
        {"SLURM_STEP_ID": ""},  # salloc's shell on the login node
        {"SLURM_PTY_PORT": "40123"},  # srun --pty bash
        {"SLURM_STEP_NUM_TASKS": "1"},  # a step of one task
    ],
)
def test_shells_inside_an_allocation_are_no_ranks(changes: dict[str, str]) -> None:
    assert detect_launcher({**SRUN, "SLURM_PROCID": "0", **changes}).launcher == "none"


def test_openmpi_on_one_node() -> None:
    found = detect_launcher(OPENMPI)
    assert (found.launcher, found.family) == ("mpirun", "openmpi")
    assert (found.rank, found.local_rank, found.world_size, found.local_world_size) == (2, 2, 4, 4)
    assert (found.nnodes, found.node_rank, found.master_addr) == (1, 0, "127.0.0.1")
    assert found.master_port is not None
    assert found.missing == ()


def test_openmpi_on_several_nodes_needs_a_master() -> None:
    found = detect_launcher({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "8"})
    assert (found.nnodes, found.node_rank, found.master_addr) == (2, None, None)
    assert found.missing == ("MASTER_ADDR",)


def test_mpirun_carried_by_slurm_is_mpirun() -> None:
    found = detect_launcher({**SRUN, **OPENMPI, "OMPI_COMM_WORLD_SIZE": "8"})
    assert (found.launcher, found.rank, found.master_addr) == ("mpirun", 2, "gpu07")


@pytest.mark.parametrize(("extra", "family"), [({}, "hydra"), ({"I_MPI_ROOT": "/opt/intel"}, "intel-mpi")])
def test_hydra(extra: dict[str, str], family: str) -> None:
    variables = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    found = detect_launcher({**variables, **extra})
    assert (found.launcher, found.family, found.rank, found.local_rank) == ("mpirun", family, 1, 1)
    assert (found.nnodes, found.master_addr) == (1, "127.0.0.1")


def test_pmi_variables_of_srun_do_not_make_it_mpirun() -> None:
    assert detect_launcher({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "7"}).launcher == "srun"


def test_variables_set_by_hand() -> None:
    found = detect_launcher(
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "m", "MASTER_PORT": "1", "LOCAL_RANK": "0"}
    )
    assert (found.launcher, found.family, found.rank, found.world_size) == ("env", None, 1, 2)
    assert (found.master_addr, found.master_port, found.missing) == ("m", 1, ())


def test_missing_master_is_named() -> None:
    assert detect_launcher({"RANK": "1", "WORLD_SIZE": "2"}).missing == ("MASTER_ADDR", "MASTER_PORT")


def test_a_pod_is_kubernetes() -> None:
    found = detect_launcher({"RANK": "1", "WORLD_SIZE": "2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (found.launcher, found.family) == ("env", "kubernetes")


def test_half_a_family_is_no_launcher_but_named() -> None:
    found = detect_launcher({"RANK": "1"})
    assert (found.launcher, found.missing) == ("none", ("WORLD_SIZE",))


def test_stale_rank_in_srun_follows_torch_and_is_a_contradiction() -> None:
    stale = {"RANK": "0", "WORLD_SIZE": "7", "MASTER_ADDR": "gpu07", "MASTER_PORT": "29500"}
    found = detect_launcher({**SRUN, **stale})
    assert (found.launcher, found.rank) == ("srun", 0)
    assert found.contradictions == ("RANK=0, but srun made this process rank 5",)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"RANK": "8"}, "RANK=8 is not below WORLD_SIZE=8"),
        ({"RANK": "-1"}, "RANK=-1 is negative"),
        ({"RANK": "five"}, "RANK='five' is not a number"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK=4 is not below LOCAL_WORLD_SIZE=4"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9 is above WORLD_SIZE=8"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http' is not a number"),
        ({"NODE_RANK": "6"}, "NODE_RANK=6, but torchrun runs on 2 nodes"),
        ({"PET_NNODES": "3"}, "PET_NNODES=3, but torchrun runs on 2 nodes"),
    ],
)
def test_impossible_values_are_contradictions(changes: dict[str, str], part: str) -> None:
    found = detect_launcher({**TORCHRUN, **changes})
    assert found.launcher == "torchrun"
    assert part in found.contradictions
