"""Ranks of earlier jobs whose launcher is gone: what they are, and what they still hold."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ddpdoctor.evidence.facts import Leftover
from ddpdoctor.gather.network.listeners import (
    PROC,
    command_of,
    listening_inodes,
    open_targets,
    process_ids,
    socket_inodes,
)

_WANTED = (b"TORCHELASTIC_RUN_ID=", b"RANK=", b"WORLD_SIZE=")
_LAUNCHERS = (
    "torchrun srun slurmstepd mpirun mpiexec orted orterun prted prterun prte hydra_pmi_proxy mpiexec.hydra "
    "accelerate deepspeed raylet"
)
_LAUNCHER_NAMES = frozenset(_LAUNCHERS.split(" "))
_SPAWNED = ("multiprocessing.spawn import spawn_main", "multiprocessing.forkserver import main")
"""What the command line of a child of ``mp.spawn`` or of a forkserver contains (multiprocessing/spawn.py)."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    name: str
    started_ticks: int
    python: bool
    rank: str | None
    world: str | None
    run_id: str | None
    command: str
    readable: bool

    @property
    def marked(self) -> bool:
        """Its environment says that it is a rank."""
        return self.run_id is not None or (self.rank is not None and self.world is not None)


def find_leftovers(proc: Path = PROC) -> tuple[tuple[Leftover, ...], str | None]:
    """Return the processes that look like ranks of an earlier job, and a note on what could not be read.

    A rank is a Python process whose environment has TORCHELASTIC_RUN_ID, or RANK and WORLD_SIZE, or that was
    made by ``mp.spawn`` and has torch mapped. It is a leftover when its launcher is gone: what adopted it is
    init or another process that is no launcher (for torchrun's ranks). Ranks with a live launcher, this
    process's own ancestors and descendants, helpers of a rank (its loader workers), and whatever started after this
    process are left out.

    Args:
        proc: where the process file system is.
    """
    processes = {pid: found for pid in process_ids(proc) if (found := _read(pid, proc)) is not None}
    own = _own_tree(processes, os.getpid())
    here = processes.get(os.getpid())
    now = here.started_ticks if here is not None else None
    inodes: dict[int, set[int]] | None = None
    leftovers: list[Leftover] = []
    for each in processes.values():
        later = now is not None and each.started_ticks >= now
        if each.pid in own or later or not each.python or not _is_orphaned_rank(each, processes, proc):
            continue
        inodes = listening_inodes(proc) if inodes is None else inodes
        leftovers.append(_describe(each, inodes, proc))
    hidden = sum(
        1 for each in processes.values() if each.python and not each.readable and each.pid not in own
    )
    some = "1 Python process" if hidden == 1 else f"{hidden} Python processes"
    note = f"{some} could not be read; run as root to see whether they are ranks" if hidden else None
    return tuple(leftovers), note


def _is_orphaned_rank(each: _Process, processes: dict[int, _Process], proc: Path) -> bool:
    parent = processes.get(each.parent)
    if not each.marked:
        spawned = any(text in each.command for text in _SPAWNED)
        return spawned and _adopted(each, parent) and _has_torch(each.pid, proc)
    if parent is not None and parent.python and parent.marked and parent.rank == each.rank and each.rank:
        return False  # a loader worker or another helper of a rank, which is listed itself if need be
    if each.run_id is not None:
        # torchrun's ranks: their agent is a Python process or a launcher by name. Wrappers between the two
        # (numactl, bash -c) carry the rank's own environment.
        while parent is not None and parent.marked and parent.rank == each.rank and parent.pid != 1:
            parent = processes.get(parent.parent)
        return parent is None or not (parent.python or parent.name in _LAUNCHER_NAMES or _is_wrapped(parent))
    return _adopted(each, parent)


def _is_wrapped(parent: _Process) -> bool:
    """A launcher under another name: torch sets process titles such as ``pt_elastic``."""
    return "torch" in parent.command or parent.name.startswith("pt_")


def _adopted(each: _Process, parent: _Process | None) -> bool:
    """Whether init, or what stands in for it, is the parent of a process that it did not start."""
    if parent is None:
        return each.parent == 0 and each.pid != 1
    adopter = parent.pid == 1 or parent.name in (
        "systemd",
        "init",
        "tini",
        "dumb-init",
        "docker-init",
        "catatonit",
    )
    return adopter and each.command not in parent.command


def _own_tree(processes: dict[int, _Process], me: int) -> set[int]:
    """Return this process, its ancestors and all descendants of itself."""
    tree, pid = {me}, me
    while (found := processes.get(pid)) is not None and found.parent not in tree and found.parent > 0:
        pid = found.parent
        tree.add(pid)
    below = {me}
    for each in sorted(processes.values(), key=lambda p: p.started_ticks):
        if each.parent in below:
            below.add(each.pid)
    return tree | below


def _read(pid: int, proc: Path) -> _Process | None:
    """Return what is known of a process; None for one that is gone, a kernel thread or a zombie."""
    folder = proc / str(pid)
    try:
        stat = (folder / "stat").read_text(errors="replace")
        command = (folder / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").replace("\0", " ")
    except OSError:
        return None
    name = stat[stat.find("(") + 1 : stat.rfind(")")]
    fields = stat[stat.rfind(")") + 2 :].split()
    if len(fields) < 20 or fields[0] in ("Z", "X") or not command:
        return None
    variables: dict[bytes, str] = {}
    readable = True
    python = _is_python(folder, name, command)
    try:
        for entry in (folder / "environ").read_bytes().split(b"\0"):
            for key in _WANTED:
                if entry.startswith(key):
                    variables[key] = entry[len(key) :].decode(errors="replace")
    except OSError:
        readable = False
    run_id, rank, world = (variables.get(key) for key in _WANTED)
    return _Process(
        pid, int(fields[1]), name, int(fields[19]), python, rank, world, run_id, command, readable
    )


def _is_python(folder: Path, name: str, command: str) -> bool:
    try:
        program = os.path.basename(os.readlink(folder / "exe"))
    except OSError:
        program = os.path.basename(command.split(" ", 1)[0]) or name
    return program.startswith(("python", "pypy"))


def _has_torch(pid: int, proc: Path) -> bool:
    try:
        return "libtorch" in (proc / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return False


def _describe(each: _Process, inodes: dict[int, set[int]], proc: Path) -> Leftover:
    targets = open_targets(each.pid, proc)
    held = socket_inodes(targets)
    ports = sorted(port for port, numbers in inodes.items() if numbers & held)
    cards = {t for t in targets if t.startswith(("/dev/nvidia", "/dev/dri/render")) and t[-1].isdigit()}
    return Leftover(
        pid=each.pid,
        parent=each.parent,
        age_s=max(
            0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - each.started_ticks / os.sysconf("SC_CLK_TCK")
        ),
        command=command_of(each.pid, proc) or each.name,
        rank=each.rank,
        run_id=each.run_id,
        ports=tuple(ports),
        devices=tuple(sorted(cards)),
    )
