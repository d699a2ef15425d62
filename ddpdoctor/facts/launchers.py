"""What launchers that leave torch's own variables to the script say of a process, once: one row for each.

Another launcher is a row here and a function in ``gather/launcher.py``. Processes of a job load this too: no imports.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm numbers the steps that are no tasks of srun from the top: batch script 0xfffffffb, interactive shell
0xfffffffa, extern 0xfffffffc, pending 0xfffffffd (slurm/slurm.h, ``SLURM_BATCH_SCRIPT``)."""

STEP = ("SLURM_STEP_ID", "SLURM_STEPID")
TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")


class Launcher:
    """One launcher.

    Args:
        name: as elsewhere in ddpdoctor.
        rank: variable with the rank.
        local_rank: variable with the rank within the host.
        world_size: variables with the number of ranks; the first one that is set counts.
    """

    def __init__(self, name: str, rank: str, local_rank: str, world_size: tuple[str, ...]) -> None:
        self.name = name
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size


OPENMPI = Launcher("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", ("OMPI_COMM_WORLD_SIZE",))
"""docs.open-mpi.org, "Environment variables" of mpirun(1)."""
MVAPICH = Launcher("mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", ("MV2_COMM_WORLD_SIZE",))
HYDRA = Launcher("hydra", "PMI_RANK", "MPI_LOCALRANKID", ("PMI_SIZE",))
"""MPICH's and Intel MPI's: PMI_* of the process manager, MPI_LOCAL* of mpiexec.hydra."""
SRUN = Launcher("srun", "SLURM_PROCID", "SLURM_LOCALID", TASKS)
"""srun(1), OUTPUT ENVIRONMENT VARIABLES."""

LAUNCHERS = (OPENMPI, MVAPICH, HYDRA, SRUN)


def find_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that made a process one of several ranks; None where none of these did.

    The innermost one counts: tasks of an mpirun that Slurm carried to the nodes are mpirun's, although SLURM_PROCID of
    its daemon is still set there. srun speaks PMI too. A shell inside ``salloc``, an ``sbatch`` script and ``srun
    --pty`` are no ranks, whatever SLURM_PROCID says there.
    """
    for launcher in (OPENMPI, MVAPICH):
        if environ.get(launcher.rank) and environ.get(launcher.world_size[0]):
            return launcher
    by_hydra = environ.get(HYDRA.local_rank) or not any(map(environ.get, STEP))
    if by_hydra and environ.get(HYDRA.rank) and environ.get(HYDRA.world_size[0]):
        return HYDRA
    return SRUN if _is_task(environ) else None


def _is_task(environ: Mapping[str, str]) -> bool:
    step, tasks = _first_number(environ, STEP), _first_number(environ, TASKS)
    if step is None or step >= FIRST_SPECIAL_STEP or not environ.get(SRUN.rank):
        return False
    return not environ.get("SLURM_PTY_PORT") and tasks is not None and tasks > 1


def _first_number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    value = next(filter(None, map(environ.get, names)), "")
    return int(value) if value.isdecimal() and len(value) < 12 else None
