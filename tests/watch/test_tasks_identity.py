"""Which task of which job of srun or mpirun a command is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.tasks.identity import Task, find_task

PROGRAM = Split((), (), ("python", "train.py"), is_command=True)
STEP = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "396361729",
    "OMPI_MCA_orte_hnp_uri": "396361728.0;tcp://192.0.2.2:35175",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}


def test_a_step_of_slurm_is_named_after_its_job_and_step() -> None:
    assert find_task(STEP, PROGRAM) == Task("slurm-1234.0", 2, 4, "srun", 0, lasting=True)


def test_a_requeued_job_has_another_name_than_before() -> None:
    task = find_task({**STEP, "SLURM_RESTART_COUNT": "2"}, PROGRAM)
    assert task is not None
    assert task.job == "slurm-1234.0-restart-2"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, id="one task"),
        pytest.param({"SLURM_STEP_ID": "4294967291"}, id="batch script"),
        pytest.param({"SLURM_PTY_PORT": "3333"}, id="shell"),
        pytest.param({"SLURM_PROCID": "4"}, id="beyond the last"),
        pytest.param({"SLURM_NTASKS": "999999", "SLURM_STEP_NUM_TASKS": "999999"}, id="too many"),
        pytest.param({"SLURM_JOB_ID": "../../etc"}, id="no number"),
    ],
)
def test_what_is_no_task_among_several(changes: dict[str, str]) -> None:
    assert find_task({**STEP, **changes}, PROGRAM) is None


@pytest.mark.parametrize(
    ("split", "several"),
    [
        (Split((), ("--nproc-per-node", "4"), ("train.py",)), False),
        (Split((), ("--nnodes", "1:1"), ("train.py",)), False),
        (Split((), ("--nnodes", "2", "--rdzv-backend", "c10d"), ("train.py",)), True),
        (Split((), (), ("torchrun", "--nnodes=2", "train.py"), is_command=True), True),
        (Split((), (), ("torchrun", "train.py"), is_command=True), False),
        (Split((), (), ("accelerate", "launch", "train.py"), is_command=True), True),
    ],
)
def test_one_torchrun_per_task_is_a_job_of_its_own(split: Split, several: bool) -> None:
    assert (find_task(STEP, split) is not None) == several


def test_tasks_of_open_mpi_come_to_one_name_and_other_jobs_to_another() -> None:
    other = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    tasks = [find_task({**OPENMPI, **changes}, PROGRAM) for changes in ({}, other)]
    names = {task.job if task is not None else None for task in tasks}
    later = find_task({**OPENMPI, "OMPI_MCA_orte_hnp_uri": "396361728.0;tcp://192.0.2.2:35999"}, PROGRAM)
    assert later is not None
    assert len(names) == 1
    assert None not in names
    assert later.job not in names
    assert not later.lasting


def test_tasks_of_mpich_are_told_by_the_proxy_above_them(tmp_path: Path) -> None:
    """Hydra names its jobs in no variable; the proxy of every node was told where their mpirun listens."""

    def find(command: str, world: str = "4") -> str | None:
        _add_process(tmp_path, os.getppid(), 1, command)
        task = find_task({**HYDRA, "PMI_SIZE": world}, PROGRAM, tmp_path)
        return task.job if task is not None else None

    first = find("/usr/bin/hydra_pmi_proxy --control-port head:41001 --rmk user --proxy-id 0")
    assert first is not None
    assert find("/usr/bin/hydra_pmi_proxy --control-port head:41001 --rmk user --proxy-id 1", "8") == first
    assert find("/usr/bin/hydra_pmi_proxy --control-port head:41002 --proxy-id 0") != first
    assert find("hydra_bstrap_proxy --upstream-port 5") is not None
    assert find("hydra_bstrap_proxy --upstream-port 5", world="8") is None, "other nodes could not know it"
    assert find("bash") is None


def _add_process(proc: Path, pid: int, parent: int, command: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"{pid} (x) S {parent} " + " ".join("7" for _ in range(40)))
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
