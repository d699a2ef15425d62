"""The processes of this host that may be ranks, as /proc shows them."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.gather.launcher import Detected, detect_launcher
from ddpdoctor.gather.network.listeners import PROC, process_ids
from ddpdoctor.gather.variables import allowed_variables

LAUNCHERS = frozenset(
    (
        "torchrun", "accelerate", "deepspeed", "horovodrun", "srun", "mpirun", "mpiexec", "ddpdoctor",
    )
)  # fmt: skip
"""Programs that start ranks, or look at them, and are none."""
LAUNCHER_MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "accelerate",
    "deepspeed.launcher.runner", "deepspeed.launcher.launch", "ddpdoctor", "coverage",
)  # fmt: skip
STORE_THREAD = "pt_tcpstore"
"""Name of a thread in the process that hosts the store in which ranks meet."""
GROUP_THREADS = ("pt_gloo", "gloo_tcp", "pt_nccl", STORE_THREAD)
"""Beginnings of the names of threads that torch starts for a process group or its store (2.5 and later)."""
AGENT_THREAD = "pt_elastic"
WORKER_THREAD = "pt_data_worker"
"""Name of a DataLoader's worker (torch/utils/data/_utils/worker.py)."""
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver import main", "torch._inductor")
"""Texts in the command lines of helper processes that every program may have."""
_IDENTITY = ("RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
"""Variables that only a rank and what it starts have in common."""
_JOBS = (
    "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid", "PALS_APID",
)  # fmt: skip
"""Variables in which the jobs of one host differ."""
_LOCAL = ("localhost", "127.", "::1")


@dataclass(frozen=True, slots=True)
class Seen:
    """One process. What its environment holds besides is not kept."""

    pid: int
    parent: int
    ticks: int
    """When it started, in clock ticks since boot."""
    name: str = ""
    command: tuple[str, ...] = ()
    python: bool = False
    uid: int | None = None
    readable: bool = True
    """Whether its environment could be read."""
    place: Detected = field(default_factory=Detected)
    identity: tuple[str | None, ...] = ()
    job: tuple[str | None, ...] = ()
    """What it has in common with the other ranks of its job."""
    attempt: int = 0
    local_rank: int | None = None
    """LOCAL_RANK, also where nothing else says that it is a rank."""
    run: str | None = None
    """Run directory of `ddpdoctor run` that watches it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Allow-listed."""
    threads: frozenset[str] = frozenset()
    """Names of its threads."""
    host: str = ""

    @property
    def marked(self) -> bool:
        """Its environment says that it, or what has started it, is a rank."""
        return self.python and self.place.is_rank and self.place.rank is not None and not self.is_launcher

    @property
    def is_launcher(self) -> bool:
        """Whether it starts ranks and is none."""
        if any(thread.startswith(AGENT_THREAD) for thread in self.threads):
            return True
        for number, word in enumerate(self.command[:6]):
            if word == "-m" and number + 1 < len(self.command):
                return self.command[number + 1] in LAUNCHER_MODULES
            if number < 2 and os.path.basename(word) in LAUNCHERS:
                return True
        return False

    @property
    def is_helper(self) -> bool:
        """Whether it is a helper of multiprocessing, of a loader or of a compiler."""
        if self.name == WORKER_THREAD or WORKER_THREAD in self.threads:
            return True
        return any(part in word for part in _HELPERS for word in self.command[:6])

    @property
    def has_group(self) -> bool:
        """Whether it has threads of a process group."""
        return any(thread.startswith(GROUP_THREADS) for thread in self.threads)

    @property
    def hosts_store(self) -> bool:
        """Whether the store in which ranks meet is its own."""
        return any(thread.startswith(STORE_THREAD) for thread in self.threads)

    @property
    def is_spawned(self) -> bool:
        """Whether multiprocessing started it afresh (mp.spawn)."""
        return any("multiprocessing.spawn import spawn_main" in word for word in self.command[:4])

    @property
    def user(self) -> str:
        """Name of the user who owns the process."""
        if self.uid is None:
            return "?"
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    @property
    def age_s(self) -> float:
        """Seconds since it started."""
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.ticks / os.sysconf("SC_CLK_TCK"))


def read_processes(proc: Path = PROC) -> dict[int, Seen]:
    """Return all processes but kernel threads, zombies, this one and those that have started it.

    Args:
        proc: where the process file system is.
    """
    found = {pid: seen for pid in process_ids(proc) if (seen := read_process(pid, proc)) is not None}
    pid = os.getpid()
    while pid in found:
        pid = found.pop(pid).parent
    return found


def read_process(pid: int, proc: Path = PROC) -> Seen | None:
    """Return what is known of a process; None for one that is gone, a kernel thread or a zombie."""
    folder = proc / str(pid)
    try:
        stat = (folder / "stat").read_text(errors="replace")
        words = (folder / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
        uid = folder.stat().st_uid
    except OSError:
        return None
    name = stat[stat.find("(") + 1 : stat.rfind(")")]
    fields = stat[stat.rfind(")") + 2 :].split()  # man 5 proc: from field 3 on
    if len(fields) < 20 or fields[0] in ("Z", "X") or not any(words):
        return None
    python = _is_python(folder, name, words[0])
    environ: dict[str, str] = {}
    readable = True
    if python:
        try:
            environ = _read_environ(folder)
        except OSError:
            readable = False
    return Seen(
        pid=pid,
        parent=int(fields[1]),
        ticks=int(fields[19]),
        name=name,
        command=tuple(words),
        python=python,
        uid=uid,
        readable=readable,
        place=detect_launcher(environ),
        identity=tuple(environ.get(each) for each in _IDENTITY),
        job=(*(environ.get(each) for each in _JOBS), _name_network(folder, environ)),
        attempt=_number(environ.get("TORCHELASTIC_RESTART_COUNT")) or 0,
        local_rank=_number(environ.get("LOCAL_RANK")),
        run=environ.get("DDPDOCTOR_RUN") if environ.get("DDPDOCTOR_WATCH") != "0" else None,
        variables=allowed_variables(environ),
        threads=_read_threads(folder) if python else frozenset(),
        host=environ.get("HOSTNAME", ""),
    )


def _is_python(folder: Path, name: str, program: str) -> bool:
    try:
        word = os.path.basename(os.readlink(folder / "exe"))
    except OSError:
        word = os.path.basename(program) or name
    return word.startswith(("python", "pypy"))


def _read_environ(folder: Path) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in (folder / "environ").read_bytes().split(b"\0") if entry)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def _read_threads(folder: Path) -> frozenset[str]:
    names = set()
    try:
        for thread in os.listdir(folder / "task"):
            names.add((folder / "task" / thread / "comm").read_text(errors="replace").strip())
    except OSError:
        pass  # it ended meanwhile
    return frozenset(names)


def _name_network(folder: Path, environ: Mapping[str, str]) -> str | None:
    """Return the network namespace where the address of the master means another host in each."""
    if not environ.get("MASTER_ADDR", "").startswith(_LOCAL):
        return None
    try:
        return os.readlink(folder / "ns" / "net")
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
