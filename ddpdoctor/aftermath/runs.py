"""Run directories of `ddpdoctor run`, and saved reports: what they hold of a job."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from ddpdoctor.aftermath.given_files import Source
from ddpdoctor.aftermath.joining.join import make_absent
from ddpdoctor.aftermath.saved import read_report
from ddpdoctor.errors import DoctorError
from ddpdoctor.evidence.bundle import Evidence
from ddpdoctor.evidence.facts import Launch
from ddpdoctor.evidence.job import JobEnd
from ddpdoctor.watch.nodes.sums import add_nodes
from ddpdoctor.watch.readers.collect import collect_run

_OF_RUNS = ("wrappers", "standstills", "training")
"""Kinds of evidence that only the directory of a run holds."""


def read_run(source: Source, lost: list[str]) -> Evidence | None:
    """Return the evidence of a run directory or of a saved report; None where it is none of a job."""
    path = source.path / "report.json" if source.kind == "run-directory" else source.path
    if os.path.isfile(path):
        evidence = _read_saved(path, lost)
        if evidence is not None or source.kind == "report":
            return evidence
    if not os.path.isdir(source.path / "processes"):
        lost.append(f"{source.name} contains no evidence of a job")
        return None
    return _collect(source, lost)


def _read_saved(path: Path, lost: list[str]) -> Evidence | None:
    try:
        report = read_report(str(path))
    except DoctorError as problem:
        lost.append(problem.message)
        return None
    if not report.evidence.job and not report.evidence.standstills:
        lost.append(f"{path} is a report of {report.command}, which watches no job: ddpdoctor report {path}")
        return None
    return dataclasses.replace(
        report.evidence, launch=dataclasses.replace(report.evidence.launch, command="analyze")
    )


def _collect(source: Source, lost: list[str]) -> Evidence | None:
    """Read what the processes of a run wrote down, where nobody was left to write its report."""
    found = collect_run(source.path)
    if not found.processes:
        lost.append(f"{source.name} contains no process's events")
        return None
    ranks = {record.rank for record in found.processes if record.rank is not None}
    sizes = [record.world_size for record in found.processes if record.world_size]
    world = max([len(ranks), *sizes, 1])
    backend = next((record.backend for record in found.processes if record.backend), None)
    restarts = max(record.attempt for record in found.processes)
    said = (*found.lost, f"{source.name} has no report: how the launcher ended is not known")
    evidence = Evidence(
        launch=Launch(
            "analyze", "torchrun", nproc=len(ranks) or 1, world_size=world, backend=backend or "none"
        ),
        processes=tuple(found.processes),
        exceptions=tuple(found.exceptions),
        crashes=tuple(found.crashes),
        wrappers=tuple(found.wrappers),
        texts=tuple(found.texts),
        job=(JobEnd(exit_code=None, restarts=restarts, lost=said),),
        standstills=tuple(found.standstills),
        training=tuple(found.training),
        absent={kind: why for kind, why in make_absent().items() if kind not in _OF_RUNS},
    )
    return add_nodes(source.path, evidence)
