"""Which job `attach` is to look at: by process, by run directory, by choice, or the only one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ddpdoctor.cli.output.display import complain
from ddpdoctor.errors import DoctorError, UsageError
from ddpdoctor.evidence import Frame
from ddpdoctor.report.words import count
from ddpdoctor.watch.attach.jobs import FoundJob, choose_by_pid, find_jobs, name_script
from ddpdoctor.watch.attach.processes import Seen, read_processes
from ddpdoctor.watch.live.stacks import take_stacks

JOBS_SHOWN = 20
"""Jobs of a host that are listed."""


def find_targets(target: str | None, *, everything: bool = False) -> list[FoundJob]:
    """Return the jobs that are meant.

    Args:
        target: a process id, a run directory, or None: the only job of the host, or the one that is chosen.
        everything: all jobs of the host.

    Raises:
        UsageError: there is no such process or directory, or several jobs to choose from and nobody to ask.
        DoctorError: no job runs here.
    """
    processes = read_processes()
    jobs = find_jobs(processes, frames_of)
    if target is None:
        readable = [job for job in jobs if job.readable]
        if not readable:
            raise _say_none(jobs, processes)
        return readable if everything or len(readable) == 1 else [_choose(readable)]
    if not target.isascii() or not target.isdigit():
        return [find_run(target, jobs)]
    pid = int(target)
    chosen = choose_by_pid(jobs, pid, processes)
    if not chosen:
        raise _say_unknown(pid, processes, jobs)
    return chosen if len(chosen) == 1 else [_choose(chosen)]


def frames_of(pids: Sequence[int]) -> dict[int, tuple[Frame, ...]]:
    """Return the frames in which processes stand, where they may be read."""
    return {pid: stack.frames for pid, stack in take_stacks(pids).items()}


def _say_none(jobs: Sequence[FoundJob], processes: dict[int, Seen]) -> DoctorError:
    if jobs:
        return DoctorError(
            f"{count(len(jobs), 'job')} {'is' if len(jobs) == 1 else 'are'} running here but cannot be read "
            + ("from this container" if os.geteuid() == 0 else "by this user"),
            context="\n  ".join(describe_job(job) for job in jobs[:JOBS_SHOWN]),
            hint=_advise_access(f"ddpdoctor attach {jobs[0].pid}"),
        )
    hidden = sum(1 for seen in processes.values() if seen.python and not seen.readable)
    context = (
        "no Python process has the variables of torchrun, srun or mpirun, or RANK and WORLD_SIZE, or is the "
        "parent of processes with a process group"
    )
    if hidden:
        context += f"; {count(hidden, 'Python process', 'Python processes')} of other users could not be read"
    return DoctorError(
        "no distributed job was found on this host",
        context=context,
        hint=_advise_access("ddpdoctor attach")
        if hidden
        else "ddpdoctor attach PID, with the PID of any process of the job",
    )


def _advise_access(command: str) -> str:
    """Return what lets us read other processes: root who may not is in a container without the capability."""
    if os.geteuid() != 0:
        return f"sudo {command}"
    return (
        "grant this container SYS_PTRACE: kubectl debug --profile=sysadmin, docker run --cap-add SYS_PTRACE"
    )


def _say_unknown(pid: int, processes: dict[int, Seen], jobs: Sequence[FoundJob]) -> DoctorError:
    seen = processes.get(pid)
    known = f"ddpdoctor attach {jobs[0].pid}" if len(jobs) == 1 else "ddpdoctor attach"
    if seen is None and not os.path.exists(Path(f"/proc/{pid}")):
        return UsageError(f"there is no process {pid}", hint=known)
    if seen is None:
        return UsageError(
            (
                f"process {pid} cannot be attached to: it is ddpdoctor itself, its parent, a zombie, or a "
                "kernel thread"
            ),
            hint=known,
        )
    if not seen.readable:
        return DoctorError(
            f"process {pid} belongs to {seen.user}, and its environment cannot be read",
            hint=_advise_access(f"ddpdoctor attach {pid}"),
        )
    return UsageError(
        f"process {pid} ({name_script(seen.command)}) is not part of a distributed job",
        context="it has no rank variables, and neither it nor its children have a process group",
        hint=known,
    )


def find_run(target: str, jobs: Sequence[FoundJob]) -> FoundJob:
    """Return the job of a run directory.

    Raises:
        UsageError: it is none, or there are several jobs and nobody to ask.
        DoctorError: no rank of it is alive here.
    """
    path = Path(target)
    if not os.path.isdir(path / "processes"):
        what = (
            ("is not a run directory")
            if os.path.exists(path)
            else "is neither a process ID nor a run directory"
        )
        raise UsageError(
            f"{target} {what}", hint="ddpdoctor attach PID, or the run directory of a live `ddpdoctor run`"
        )
    inside = path.resolve()
    found = [job for job in jobs if job.run is not None and Path(job.run).resolve().is_relative_to(inside)]
    if not found:
        raise DoctorError(
            f"no rank of the run in {target} is alive on this host", hint=f"ddpdoctor analyze {target}"
        )
    return found[0] if len(found) == 1 else _choose(found)


def describe_job(job: FoundJob) -> str:
    """Return a job in one line, what to type for it first."""
    size = f"{count(len(job.ranks), 'rank')}"
    if job.world_size != len(job.ranks):
        size += f" of {job.world_size}"
    watched = ", under ddpdoctor run" if job.run else ""
    first = job.ranks[0].seen
    return (
        f"{job.pid:<8} {job.launcher}, {size}, {job.script}, {first.user}, for {_age(first.age_s)}{watched}"
    )


def _choose(jobs: Sequence[FoundJob]) -> FoundJob:
    """Return the job that the person at the terminal chooses.

    Raises:
        UsageError: there is none to ask, or no choice was made.
    """
    lines = [describe_job(job) for job in jobs[:JOBS_SHOWN]]
    error = UsageError(
        f"{count(len(jobs), 'job')} are running on this host; pass a PID to pick one",
        context="\n  ".join(lines),
        hint=f"ddpdoctor attach {jobs[0].pid}, or ddpdoctor attach --all",
    )
    if sys.stdin is None or sys.stderr is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise error
    for number, line in enumerate(lines, 1):
        complain(f"{number:>3}  {line}")
    while True:
        print(f"which (1-{len(lines)})? ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            raise error
        by_pid = [job for job in jobs if answer.strip() == str(job.pid)]
        if by_pid:
            return by_pid[0]
        if answer.strip().isdecimal() and 1 <= int(answer) <= len(lines):
            return jobs[int(answer) - 1]


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
