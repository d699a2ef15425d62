"""Which job of srun or mpirun this command is a task of: a name that all its tasks come to, and no other job does."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddpdoctor.gather import machine
from ddpdoctor.gather.launcher import MPIRUN, SRUN, Detected, detect_launcher
from ddpdoctor.gather.network.listeners import PROC
from ddpdoctor.gather.process_state import STARTED, list_ancestors, read_command, read_stat
from ddpdoctor.watch.commandline import Split, find_torchrun, read_torchrun

MOST_TASKS = 16_384
_PROXIES = ("hydra_pmi_proxy", "pmi_proxy", "hydra_bstrap_proxy")
"""What starts the tasks of MPICH and Intel MPI on each node."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a job."""

    job: str
    """Name of the job: the folder in which its tasks meet."""
    number: int
    """Rank among the tasks."""
    count: int
    launcher: str
    local: int | None = None
    lasting: bool = False
    """The name is the scheduler's own and is given once; others may come back after a while."""


def find_task(environ: Mapping[str, str], split: Split, proc: Path = PROC) -> Task | None:
    """Return which task this command is; None where it was started alone, or starts a job of its own.

    Args:
        environ: the variables of the launcher.
        split: what is launched. One torchrun per task without ``--nnodes`` makes a job of each task.
        proc: where processes are listed.
    """
    found = detect_launcher(environ)
    if found.launcher not in (SRUN, MPIRUN) or found.rank is None or not found.world_size:
        return None
    if not 0 <= found.rank < found.world_size or not 1 < found.world_size <= MOST_TASKS:
        return None
    if _starts_own_job(environ, split):
        return None
    name = _name_step(environ) if found.launcher == SRUN else _name_mpi(environ, found, proc)
    if name is None:
        return None
    return Task(name, found.rank, found.world_size, found.launcher, found.local_rank, found.launcher == SRUN)


def _starts_own_job(environ: Mapping[str, str], split: Split) -> bool:
    words = find_torchrun(split.target) if split.is_command else split.torchrun
    if words is None:
        return False
    return read_torchrun(words, environ).get("nnodes", "1").rpartition(":")[2] == "1"


def _name_step(environ: Mapping[str, str]) -> str | None:
    """Slurm numbers its jobs and their steps; a job that is requeued keeps its number (SLURM_RESTART_COUNT)."""
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
    if not (job and step and job.isdecimal() and step.isdecimal()):
        return None
    again = environ.get("SLURM_RESTART_COUNT", "0")
    restart = f"-restart-{int(again)}" if again.isdecimal() and int(again) else ""
    return f"slurm-{int(job)}.{int(step)}{restart}"


def _name_mpi(environ: Mapping[str, str], found: Detected, proc: Path) -> str | None:
    told = [environ.get(name) for name in ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri")]
    if found.family == "openmpi" and told[0]:
        return _hash(*filter(None, told))
    port = next(_list_control_ports(proc), None)
    if port is not None:
        return _hash("hydra", port)
    if found.local_world_size == found.world_size:
        proxy = next(_list_proxies(proc), None)
        return _hash("hydra", machine.boot_id() or "", *proxy) if proxy else None
    return None


def _hash(*words: str) -> str:
    return f"mpi-{hashlib.sha256(chr(0).join(words).encode(errors='replace')).hexdigest()[:12]}"


def _list_control_ports(proc: Path) -> Iterator[str]:
    """Yield host and port of the mpirun that the proxies above this process were told, the same on all nodes."""
    for pid in list_ancestors(proc):
        words = read_command(pid, proc)
        if _is_proxy(words) and "--control-port" in words[:-1]:
            yield words[words.index("--control-port") + 1]


def _list_proxies(proc: Path) -> Iterator[tuple[str, str]]:
    """Yield number and start of the proxies above this process, which is the same for all tasks of a node."""
    for pid in list_ancestors(proc):
        if _is_proxy(read_command(pid, proc)):
            yield str(pid), read_stat(pid, proc)[STARTED]


def _is_proxy(words: list[str]) -> bool:
    return bool(words) and os.path.basename(words[0]) in _PROXIES
