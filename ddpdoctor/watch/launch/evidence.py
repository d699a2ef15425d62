"""The evidence of one run: what its processes wrote, what was seen from beside, and how it ended."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
from collections.abc import Mapping, Sequence

from ddpdoctor.evidence import Absent, Evidence, Frame, Launch, RankFacts
from ddpdoctor.evidence.bundle import JOB_KINDS, KINDS
from ddpdoctor.evidence.job import ExceptionRecord, JobEnd, ProcessRecord, TextMatch
from ddpdoctor.evidence.job_ranks import describe_ranks
from ddpdoctor.evidence.texts.matching import match_text
from ddpdoctor.gather.scrub import scrub
from ddpdoctor.gather.variables import allowed_variables
from ddpdoctor.watch.commandline import Split, find_torchrun, read_torchrun
from ddpdoctor.watch.launch.result import JobResult
from ddpdoctor.watch.launch.script import ScriptProblem
from ddpdoctor.watch.readers.collect import Collected, collect_run
from ddpdoctor.watch.rundir import RunDirectory

_NUMBERS = {"PermissionError": errno.EACCES, "IsADirectoryError": errno.EISDIR}


def make_evidence(
    result: JobResult,
    directory: RunDirectory,
    split: Split,
    toggles: Mapping[str, str] | None = None,
    *,
    log_bytes: int | None = None,
) -> Evidence:
    """Return everything that was seen of a job on this node.

    Args:
        result: how it ended, or how it stands.
        directory: of the run.
        split: what was launched.
        toggles: debug variables that we put into its environment.
        log_bytes: read of each log, half of it at each end; all when None.
    """
    host = socket.gethostname()
    found = collect_run(directory.kept, log_bytes=log_bytes)
    found.processes = [_with_command_end(record, result) for record in found.processes]
    processes = tuple(_with_memory(record, result, host) for record in found.processes)
    end = JobEnd(
        exit_code=result.exit_code if result.returncode >= 0 else None,
        signal=-result.returncode if result.returncode < 0 else None,
        launcher="torchrun" if not split.is_command else split.target[0].rpartition("/")[2],
        restarts=max((record.attempt for record in processes), default=0),
        duration_s=result.duration_s,
        lost=(*found.lost, *result.lost, *([directory.note] if directory.note else [])),
        interrupted=result.signals[0] if result.signals else None,
        toggles=dict(toggles or {}),
        stopped=result.stopped,
        stopped_elsewhere=scrub(result.stopped_elsewhere) if result.stopped_elsewhere else None,
    )
    return Evidence(
        launch=_describe_launch(found, end.launcher, split),
        ranks=_describe_ranks(processes),
        processes=processes,
        exceptions=tuple(found.exceptions),
        crashes=tuple(found.crashes),
        wrappers=tuple(found.wrappers),
        texts=tuple(found.texts),
        memory=(result.memory.record(0, host),),
        job=(end,),
        calls=(result.calls,) if result.calls is not None else (),
        standstills=tuple(found.standstills),
        training=tuple(found.training),
        absent=_absent(),
    )


def make_unstarted(problem: ScriptProblem, split: Split) -> Evidence:
    """Return the evidence of a job that was never launched because its script cannot start."""
    record = ProcessRecord(
        pid=0,
        host=socket.gethostname(),
        rank=0,
        command=("python", *split.target),
        script=problem.file,
        exit_code=1,
    )
    exceptions: tuple[ExceptionRecord, ...] = ()
    texts: tuple[TextMatch, ...] = ()
    if problem.type in ("SyntaxError", "IndentationError", "TabError"):
        frames = (Frame(problem.file, problem.line, "<module>"),) if problem.line else ()
        exceptions = (
            ExceptionRecord(pid=0, type=problem.type, message=problem.message, frames=frames, rank=0),
        )
    else:  # in the words that Python would have found for it
        number = _NUMBERS.get(problem.type, errno.ENOENT)
        line = f"python: can't open file '{problem.file}': [Errno {number}] {problem.message}"
        texts = tuple(
            TextMatch(entry=entry, text=line, groups=groups, host=record.host, pid=0, rank=0)
            for entry, groups in match_text(line)
        )
    return Evidence(
        launch=Launch(command="run", launcher="torchrun"),
        processes=(record,),
        exceptions=exceptions,
        texts=texts,
        job=(JobEnd(exit_code=1, launcher="torchrun"),),
        absent=_absent(),
    )


def _absent() -> dict[str, Absent]:
    """A run examines the job, not the machine: that is what check is for."""
    why = Absent("`run` watches the job; use `ddpdoctor check` to test the machine", applicable=False)
    return {kind: why for kind in KINDS if kind not in JOB_KINDS}


def _with_command_end(record: ProcessRecord, result: JobResult) -> ProcessRecord:
    """The command is our own child; no watched process saw how it ended. torchrun's end says nothing by itself."""
    known = record.exit_code is not None or record.signal is not None
    if record.parent != os.getpid() or record.role == "launcher" or known:
        return record
    if result.returncode == 0 and result.ended is None:
        return record  # it has not ended
    ended = record.ended or result.ended
    if result.returncode >= 0:
        return dataclasses.replace(record, exit_code=result.returncode, ended=ended)
    return dataclasses.replace(record, signal=-result.returncode, ended=ended)


def _with_memory(record: ProcessRecord, result: JobResult, host: str) -> ProcessRecord:
    return dataclasses.replace(
        record,
        host=record.host or host,
        rss_bytes=result.memory.resident.get(record.pid),
        rss_peak_bytes=result.memory.peak.get(record.pid),
    )


def _describe_ranks(processes: Sequence[ProcessRecord]) -> tuple[RankFacts, ...]:
    """Return the ranks for the checks of launches; none where a command ran several jobs beside each other.

    What a rank starts may initialise groups of its own, with numbers that mean something else.
    """
    known = {record.pid: record for record in processes}

    def is_helper(record: ProcessRecord) -> bool:
        above, seen = record.parent, {record.pid}
        while above in known and above not in seen:
            if known[above].role == "rank" and known[above].rank is not None:
                return True
            seen.add(above)
            above = known[above].parent
        return False

    ranks = describe_ranks(record for record in processes if not is_helper(record))
    return ranks if len({facts.rank for facts in ranks}) == len(ranks) else ()


def _describe_launch(found: Collected, launcher: str, split: Split) -> Launch:
    joined = [record for record in found.processes if record.is_rank]
    ranks = [record for record in joined if record.role == "rank"] or joined
    sizes = [record.world_size for record in ranks if record.world_size]
    backend = next((record.backend for record in ranks if record.backend), None)
    given = _read_launcher(found.processes, split)
    groups = [record.variables.get("GROUP_WORLD_SIZE", "") for record in ranks]
    if not any(groups):
        groups = [given.get("nnodes", "").partition(":")[0]]
    asked = given.get("nproc-per-node", "")
    port, node = given.get("master-port", ""), given.get("node-rank", "")
    return Launch(
        command="run",
        launcher=launcher,
        nnodes=max((int(size) for size in groups if _is_number(size)), default=1),
        nproc=len({record.rank for record in ranks}) or (int(asked) if _is_number(asked) else 1),
        world_size=max(sizes, default=len(ranks) or 1),
        node_rank=int(node) if _is_number(node) else None,
        master_addr=given.get("master-addr"),
        master_port=int(port) if _is_number(port) else None,
        rdzv_backend=given.get("rdzv-backend") or ("c10d" if "standalone" in given else None),
        rdzv_endpoint=scrub(given.get("rdzv-endpoint", "")) or None,
        rdzv_id=given.get("rdzv-id"),
        local_addr=given.get("local-addr"),
        backend=backend or "none",
        variables=allowed_variables(os.environ),
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


def _read_launcher(processes: Sequence[ProcessRecord], split: Split) -> dict[str, str]:
    """Return the options that torchrun was given; none where no torchrun was seen."""
    if not split.is_command:
        return read_torchrun(split.torchrun, os.environ)
    for record in processes:
        words = find_torchrun(record.command) if record.role == "launcher" else None
        if words is not None:
            return read_torchrun(words, os.environ)
    return {}
