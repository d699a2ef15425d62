"""Running a job that failed once more, with a toggle that brings a hidden error up.

Whether that would help is read from the codes of the first verdict; what came of it is evidence like any other.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.job import Rerun
from ddpdoctor.watch.launch.toggles import BLOCKING, DETAIL, find_decisive

AUTO = "auto"

HELPED = {BLOCKING: ("ERR007",), DETAIL: ("COL003", "COL005")}
"""Codes of failures whose true line a toggle can show."""
FACTOR = 3.0
EXTRA_S = 60.0
"""A run in which every kernel is waited for takes a small multiple of the time; starting and stopping adds some."""


@dataclass(frozen=True, slots=True)
class Stdin:
    """What standard input was before the first run."""

    problem: str | None = None
    """Why it cannot be given to a second run."""
    offset: int | None = None
    """Where in a file it stood."""

    def rewind(self) -> None:
        """Let a file be read again from where the first run began."""
        if self.offset is not None:
            with contextlib.suppress(OSError):
                os.lseek(0, self.offset, os.SEEK_SET)


def look_at_stdin() -> Stdin:
    """Return whether a second run can be given the same input: a terminal, nothing, or a file can."""
    try:
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            return Stdin(offset=os.lseek(0, 0, os.SEEK_CUR))
        if os.isatty(0) or status.st_rdev == os.stat(os.devnull).st_rdev:
            return Stdin()
    except OSError:
        return Stdin()  # closed: there is nothing to read in either run
    kind = "a pipe" if stat.S_ISFIFO(status.st_mode) else "neither a terminal nor a file"
    return Stdin(f"stdin is {kind}, and what the first run read from it is gone")


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether, and how, to run again."""

    toggle: str
    problem: str | None = None
    """Why it is not done although it was asked for."""


def choose_rerun(
    asked: str,
    codes: Collection[str],
    evidence: Evidence,
    environ: Mapping[str, str],
    *,
    stdin: Stdin,
    interrupted: bool,
    torch: str | None = None,
) -> Choice | None:
    """Say whether a second run would show more than the first.

    Args:
        asked: blocking, detail or auto.
        codes: of the first run's findings.
        evidence: of the first run.
        environ: of the first run.
        stdin: as it was before.
        interrupted: the user ended the first run.
        torch: its version.

    Returns:
        None where none of the failures is one that a second run would explain.
    """
    wanted = (BLOCKING, DETAIL) if asked == AUTO else (asked,)
    toggle = next((each for each in wanted if any(code in codes for code in HELPED[each])), None)
    if toggle is None:
        return None
    name, value = find_decisive(toggle, torch)
    problem = None
    if interrupted:
        problem = "the first run was interrupted"
    elif environ.get(name, "").upper() == value:
        problem = f"{name}={value} was already on in the first run"
    elif _count_nodes(evidence) > 1:
        problem = (
            "the job runs on several nodes, which would all have to restart together; run the same command "
            f"with --{BLOCKING if toggle == BLOCKING else 'debug detail'} on each"
        )
    elif stdin.problem is not None:
        problem = f"{stdin.problem}; with </dev/null it could be rerun"
    return Choice(toggle, problem)


def _count_nodes(evidence: Evidence) -> int:
    """Return on how many nodes the job ran, by what torchrun and Slurm told its ranks."""
    ranks = [each for each in evidence.processes if each.role == "rank"]
    told = [
        int(value)
        for each in ranks
        for name in ("GROUP_WORLD_SIZE", "SLURM_NNODES")
        if (value := each.variables.get(name, "")).isdecimal()
    ]
    return max([evidence.launch.nnodes, *told])


def default_limit(first_s: float) -> float:
    """Return the seconds that a second run may take."""
    return first_s * FACTOR + EXTRA_S


def describe_skipped(choice: Choice) -> Rerun:
    """Return the record of a second run that was not made."""
    return Rerun(choice.toggle, state="skipped", reason=choice.problem)


def describe_rerun(
    choice: Choice,
    evidence: Evidence,
    *,
    state: str,
    limit_s: float,
    variables: Mapping[str, str],
    directory: str,
) -> Rerun:
    """Return the record of a second run.

    Args:
        choice: what was chosen.
        evidence: of the second run.
        state: ended, stopped (a hang was seen), timed-out or interrupted.
        limit_s: its limit.
        variables: what was added to the environment.
        directory: its run directory, seen from the first one's.
    """
    return Rerun(
        choice.toggle,
        state=state,
        variables=dict(variables),
        limit_s=limit_s,
        directory=directory,
        processes=evidence.processes,
        exceptions=evidence.exceptions,
        crashes=evidence.crashes,
        wrappers=evidence.wrappers,
        texts=evidence.texts,
        memory=evidence.memory,
        job=evidence.job,
    )


@contextlib.contextmanager
def keep_stdout_single() -> Iterator[None]:
    """Let what a job prints go to stderr, unless stdout is a terminal: who reads it reads one run and not two."""
    try:
        if os.isatty(1):
            yield
            return
        kept = os.dup(1)
    except OSError:
        yield
        return
    try:
        if sys.stdout is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
