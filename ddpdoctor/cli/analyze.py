"""``ddpdoctor analyze``: the verdict after the fact, from what a job left behind."""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ddpdoctor.cli import options as common
from ddpdoctor.cli.values import require_path
from ddpdoctor.errors import EXIT_FINDINGS, DoctorError

if TYPE_CHECKING:
    from ddpdoctor.aftermath import Source, Sources
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.judge.runner import CheckRow
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.plugins import Plugins
    from ddpdoctor.report.model import Report

EXAMPLES = (
    ("ddpdoctor analyze train.log", "what torchrun printed, saved to a file; gzip too"),
    ("ddpdoctor analyze ddpdoctor-runs/20260102-030405-ab12", "a run directory of ddpdoctor run"),
    ("ddpdoctor analyze node-a.log node-b.log", "the logs of several nodes together"),
    ("ddpdoctor analyze logs/", "a tree of torchrun --log-dir, with its error files"),
    ("ddpdoctor analyze /tmp/nccl_trace/", "Flight Recorder dumps of the ranks, pickled or JSON"),
    ("kubectl logs job/train | ddpdoctor analyze -", "from a pipe"),
)
REASONS_SHOWN = 5
"""Reasons in a message about paths that could not be read; the report has all of them."""


_OF_RUNS = ("wrappers", "standstills", "training")
"""Kinds of evidence that only the directory of a run holds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``analyze``."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="run directories, logs, error files, recorder dumps, stack dumps, folders of them; - is stdin",
    )
    common.add_output_options(parser)
    common.add_selection_options(parser)
    common.add_fail_option(parser)
    common.add_verbosity_options(parser)


def run(options: argparse.Namespace) -> int:
    """Read, judge, show."""
    from ddpdoctor.cli.display import Display, complain
    from ddpdoctor.cli.outputs import deliver, render_options
    from ddpdoctor.cli.select import choose_selection
    from ddpdoctor.plugins import load_plugins

    sources = sort_paths(options.paths)
    plugins = load_plugins()
    selection = choose_selection(options, {code: page.name for code, page in plugins.checks.pages.items()})
    outputs = common.pair_outputs(options, plugins.renderers.names)
    display = Display.of(sys.stdout, no_color=getattr(options, "no_color", False))
    report = make_report(sources, options, plugins, selection)
    if common.verbosity(options) >= 0:
        for sentence in _lost(report, sources.skipped):
            complain(f"ddpdoctor: {sentence}")
    shown = render_options(display, verbosity=common.verbosity(options), pages=plugins.checks.pages)
    failed = deliver(report, outputs, plugins.renderers, shown)
    return failed or choose_exit_code(report, getattr(options, "fail_on", "error"))


def choose_exit_code(report: Report, fail_on: str) -> int:
    """Return the exit code: a job that failed is a problem even where nothing shows why."""
    from ddpdoctor.cli.check import exit_code
    from ddpdoctor.report.build import describe_failure

    if fail_on != "never" and report.verdict.status == "problems" and describe_failure(report.evidence):
        return EXIT_FINDINGS
    return exit_code(report, fail_on)


def _lost(report: Report, skipped: Sequence[str]) -> list[str]:
    said = [end.lost for end in report.evidence.job] + [log.lost for log in report.evidence.calls]
    sentences = list(dict.fromkeys([*(sentence for each in said for sentence in each), *skipped]))
    more = len(sentences) - REASONS_SHOWN
    return sentences if more <= 0 else [*sentences[:REASONS_SHOWN], f"and {more} more, see --json"]


def sort_paths(paths: Sequence[str]) -> Sources:
    """Sort what was given into what can be read and what cannot.

    Raises:
        UsageError: a path does not exist.
    """
    from ddpdoctor.aftermath import Sources

    sources = Sources()
    for name in paths:
        if name == "-":
            continue
        require_path(name, hint="torchrun … train.py 2>&1 | tee train.log")
        sources.add(Path(name), named=True)
    return sources


def make_report(
    sources: Sources, options: argparse.Namespace, plugins: Plugins, selection: Selection
) -> Report:
    """Gather the evidence and judge it.

    Raises:
        DoctorError: nothing of what was given could be read.
    """
    from ddpdoctor.gather.scrub import scrub_argv
    from ddpdoctor.report.build import build_report
    from ddpdoctor.report.model import Job

    started, began = datetime.now(timezone.utc), time.monotonic()
    evidence = gather(sources, stdin="-" in options.paths)
    if evidence is None:
        shown = sources.skipped[:REASONS_SHOWN]
        raise DoctorError(
            "nothing that was given could be read",
            context="; ".join(shown) or None,
            hint="ddpdoctor analyze LOG, with what torchrun printed",
        )
    end = evidence.job[0] if evidence.job else None
    return build_report(
        evidence,
        registry=plugins.checks,
        started_at=started,
        duration_s=time.monotonic() - began,
        invocation=scrub_argv(options.invocation),
        selection=selection,
        extra_rows=[*(problem.to_row() for problem in plugins.problems), *_rows_of_cut(sources)],
        job=Job(end.exit_code, end.signal) if end is not None else None,
    )


def _rows_of_cut(sources: Sources) -> list[CheckRow]:
    """Return a row that keeps a verdict from being good where a log was not read to its end."""
    from ddpdoctor.judge.runner import CheckRow

    reason = "; ".join(sources.cut[:REASONS_SHOWN])
    return (
        [CheckRow("analyze.read-in-full", (), "crash", "unknown", reason, 0.0, "ddpdoctor")]
        if sources.cut
        else []
    )


def gather(sources: Sources, *, stdin: bool = False) -> Evidence | None:
    """Read everything; None where nothing could be read."""
    from ddpdoctor.aftermath import read_sources
    from ddpdoctor.evidence import merge_evidence

    lost = sources.skipped
    parts: list[Evidence] = []
    names: list[str] = []
    for source in sources.found:
        if source.kind in ("report", "run-directory"):
            part = read_run(source, lost)
            if part is not None:
                parts.append(part)
                names.append(source.name)
    files = [source for source in sources.found if source.kind in ("log", "error-file")]
    pipe = cast(io.BufferedIOBase, sys.stdin.buffer) if stdin else None
    logged = (
        read_sources(files, cwd=Path.cwd(), lost=[] if parts else lost, stdin=pipe, cut=sources.cut)
        if files or pipe
        else None
    )
    if logged is not None:
        parts.append(logged)
        names.append("logs")
    numbered = _number_nodes(*_join_known(parts, names)) if parts else []
    for part in (read_recorder(sources, lost), read_stack_files(sources, lost)):
        if part is not None:
            numbered.append(part)
    if not numbered:
        return None
    whole = merge_evidence(numbered)
    world = max(part.launch.world_size for part in numbered)
    whole = dataclasses.replace(whole, launch=dataclasses.replace(whole.launch, world_size=world))
    ends = whole.job
    if ends and lost and parts[0] is not logged:
        ends = (dataclasses.replace(ends[0], lost=(*ends[0].lost, *lost)), *ends[1:])
    return dataclasses.replace(whole, job=ends)


def read_stack_files(sources: Sources, lost: list[str]) -> Evidence | None:
    """Return where ranks stood by stacks in files; None where there are none whose rank is told."""
    from ddpdoctor.aftermath.stackfiles import read_stacks
    from ddpdoctor.aftermath.whose import make_shortener
    from ddpdoctor.evidence import Absent, Evidence, Launch
    from ddpdoctor.evidence.bundle import KINDS
    from ddpdoctor.evidence.job import Moment
    from ddpdoctor.evidence.standstill import Stand, Standstill
    from ddpdoctor.gather.files import UNREADABLE
    from ddpdoctor.watch.attach.calls import find_call

    shorten = make_shortener(Path.cwd())
    stands: dict[int, Stand] = {}
    for source in sources.found:
        if source.kind != "stacks":
            continue
        try:
            found = read_stacks(source.path, source.name)
        except UNREADABLE as problem:
            lost.append(f"{source.name} cannot be read: {getattr(problem, 'strerror', None) or problem}")
            continue
        for each in found:
            if each.rank is None:
                lost.append(
                    f"{source.name} does not tell which rank's stacks it holds: name it after the rank"
                )
            elif each.rank in stands:
                lost.append(
                    f"there are several stacks of rank {each.rank}: that of {source.name} is left out"
                )
            else:
                call = find_call(each.frames)
                frames = tuple(dataclasses.replace(f, file=shorten(f.file)) for f in each.frames)
                call = dataclasses.replace(call, frames=frames) if call is not None else None
                stands[each.rank] = Stand(
                    each.rank,
                    each.pid,
                    call=call,
                    frames=frames,
                    frames_before=frames,
                    native=each.native,
                    watched=False,
                )
    if not stands:
        return None
    world = max(stands) + 1
    look = Standstill(
        Moment(time.time_ns()), 0.0, 0.0, tuple(stands[rank] for rank in sorted(stands)), world, given=True
    )
    why = Absent("stacks do not tell it", applicable=False)
    return Evidence(
        launch=Launch("analyze", nproc=world, world_size=world, backend="none"),
        standstills=(look,),
        absent={kind: why for kind in KINDS if kind != "standstills"},
    )


def _join_known(parts: Sequence[Evidence], names: Sequence[str]) -> tuple[list[Evidence], list[str]]:
    """Join the run directories of one job that know which node each is."""
    from ddpdoctor.watch.nodes.sums import describe_launch, join_nodes

    known = [part for part in parts if part.members]
    if not known:
        return list(parts), list(names)
    first = next(name for part, name in zip(parts, names, strict=True) if part.members)
    rest = [(part, name) for part, name in zip(parts, names, strict=True) if not part.members]
    joined = describe_launch(join_nodes(known))
    return [joined, *(part for part, _ in rest)], [first, *(name for _, name in rest)]


def read_recorder(sources: Sources, lost: list[str]) -> Evidence | None:
    """Return the evidence of Flight Recorder dumps; None where there are none that can be read."""
    from ddpdoctor.aftermath.whose import make_shortener
    from ddpdoctor.evidence import Absent, Evidence, Launch
    from ddpdoctor.evidence.bundle import KINDS
    from ddpdoctor.gather.recorder import read_dumps

    files = [(source.path, source.name) for source in sources.found if source.kind == "recorder"]
    log = read_dumps(files, lost) if files else None
    if log is None:
        return None
    shorten = make_shortener(Path.cwd())
    frames = tuple(dataclasses.replace(frame, file=shorten(frame.file)) for frame in log.frames)
    why = Absent("recorder dumps do not hold it", applicable=False)
    return Evidence(
        launch=Launch("analyze", nproc=log.world or 1, world_size=log.world or 1, backend="none"),
        calls=(dataclasses.replace(log, frames=frames, lost=tuple(lost)),),
        absent={kind: why for kind in KINDS if kind != "calls"},
    )


def _number_nodes(parts: Sequence[Evidence], names: Sequence[str]) -> list[Evidence]:
    """Give run directories of several hosts a node each; those of one host stay together.

    Hosts that are all called alike, as in containers, are told apart where one local rank is another rank in each;
    the names of the directories then name them.
    """
    from ddpdoctor.aftermath.nodes import name_by_paths
    from ddpdoctor.evidence.bundle import renumber_node

    known: list[tuple[frozenset[str], dict[int, int]]] = []
    placed: list[int] = []
    for part in parts:
        own = frozenset(process.host for process in part.processes if process.host)
        places = {
            process.local_rank: process.rank
            for process in part.processes
            if process.local_rank is not None and process.rank is not None
        }
        fits = (n for n, (hosts, others) in enumerate(known) if hosts == own and _agree(places, others))
        node = next(fits, len(known))
        if node == len(known):
            known.append((own, {}))
        known[node][1].update(places)
        placed.append(node)
    paths = name_by_paths(names)
    alike = [hosts for hosts, _ in known]
    made = []
    for part, node in zip(parts, placed, strict=True):
        name = paths[placed.index(node)]
        changed = _rename_host(part, name) if alike.count(alike[node]) > 1 and alike[node] and name else part
        known_nodes = {process.node for process in part.processes} or {0}
        made.append(
            renumber_node(changed, node) if len(known_nodes) == 1 and node not in known_nodes else changed
        )
    return made


def _agree(places: Mapping[int, int], others: Mapping[int, int]) -> bool:
    return all(others.get(local, rank) == rank for local, rank in places.items())


def _rename_host(part: Evidence, host: str) -> Evidence:
    kinds = ("processes", "exceptions", "crashes", "wrappers", "texts", "memory")
    changed: dict[str, Any] = {
        kind: tuple(dataclasses.replace(row, host=host) for row in getattr(part, kind)) for kind in kinds
    }
    return dataclasses.replace(part, **changed)


def read_run(source: Source, lost: list[str]) -> Evidence | None:
    """Return the evidence of a run directory or of a saved report; None where it is none of a job."""
    path = source.path / "report.json" if source.kind == "run-directory" else source.path
    if os.path.isfile(path):
        evidence = _read_saved(path, lost)
        if evidence is not None or source.kind == "report":
            return evidence
    if not os.path.isdir(source.path / "processes"):
        lost.append(f"{source.name} holds no evidence of a job")
        return None
    return _collect(source, lost)


def _read_saved(path: Path, lost: list[str]) -> Evidence | None:
    from ddpdoctor.cli.report import read_report

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
    from ddpdoctor.aftermath.join import make_absent
    from ddpdoctor.evidence.bundle import Evidence
    from ddpdoctor.evidence.facts import Launch
    from ddpdoctor.evidence.job import JobEnd
    from ddpdoctor.watch.nodes.sums import add_nodes
    from ddpdoctor.watch.readers.collect import collect_run

    found = collect_run(source.path)
    if not found.processes:
        lost.append(f"{source.name} holds no process's events")
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
