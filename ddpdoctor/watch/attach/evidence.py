"""The evidence of a job that was looked at while it ran."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from ddpdoctor.evidence import Absent, Evidence, Launch
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.evidence.job import PHASE, Milestone, Moment, ProcessRecord
from ddpdoctor.evidence.job_ranks import describe_ranks
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.gather.scrub import scrub_argv
from ddpdoctor.watch.attach.jobs import FoundJob, FoundRank, name_script
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.rings import find_rings

SEEN = ("processes", "ranks", "standstills")
"""Kinds of evidence that a look gives."""


def make_evidence(job: FoundJob, looks: Sequence[Standstill]) -> Evidence:
    """Return what was seen of a job.

    Args:
        job: its ranks.
        looks: at them.
    """
    numbers = {stand.pid: stand.rank for look in looks for stand in look.stands if stand.pid}
    phases = _read_phases(job)
    processes = tuple(
        _describe(job, rank, numbers.get(rank.pid, rank.rank), phases.get(rank.pid)) for rank in job.ranks
    )
    sizes = [look.world_size for look in looks if look.world_size]
    node = job.ranks[0].seen.place.node_rank
    # Where a script makes the variables itself, /proc does not show them, and there is nothing to compare.
    ranks = describe_ranks(processes) if all(rank.seen.marked for rank in job.ranks) else ()
    why = Absent("`attach` inspects a running job from outside", applicable=False)
    return Evidence(
        launch=Launch(
            command="attach",
            launcher=job.launcher,
            nnodes=job.nodes,
            nproc=len(job.ranks),
            world_size=max(sizes, default=job.world_size),
            node_rank=node if job.nodes > 1 else None,
            backend="none",
        ),
        ranks=ranks,
        processes=processes,
        standstills=tuple(looks),
        absent={kind: why for kind in KINDS if kind not in SEEN or (kind == "ranks" and not ranks)},
    )


def _read_phases(job: FoundJob) -> dict[int, str]:
    """Return what the program calls the phase that each process is in, where it says so in a job under `run`."""
    if job.run is None:
        return {}
    rings = find_rings(Path(job.run) / "processes", {})
    for ring in rings:
        ring.read_tables(Shortener(Path.cwd()))
    return {ring.pid: ring.named for ring in rings if ring.named}


def _describe(job: FoundJob, rank: FoundRank, number: int, phase: str | None) -> ProcessRecord:
    seen = rank.seen
    wall_ns = time.time_ns() - int(seen.age_s * 1e9)
    now = Moment(time.time_ns(), time.monotonic_ns())
    return ProcessRecord(
        pid=seen.pid,
        node=seen.place.node_rank or 0,
        host=socket.gethostname(),
        parent=seen.parent,
        rank=number,
        local_rank=rank.local_rank,
        world_size=job.world_size,
        attempt=seen.attempt,
        command=tuple(scrub_argv(list(seen.command))),
        script=name_script(seen.command),
        started=Moment(wall_ns, int(seen.ticks * 1e9 / os.sysconf("SC_CLK_TCK"))),
        watched=seen.run is not None,
        milestones=(Milestone(PHASE, now, phase),) if phase else (),
        variables=dict(seen.variables),
    )
