"""``ddpdoctor attach``: examine a job that already runs, without changing anything of it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.parsing import add_option
from ddpdoctor.errors import EXIT_FAILED, DoctorError, UsageError

if TYPE_CHECKING:
    from ddpdoctor.cli.output.display import Display
    from ddpdoctor.evidence.standstill import Standstill
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.plugins import Plugins
    from ddpdoctor.report.model import Report
    from ddpdoctor.watch.attach.jobs import FoundJob

EXAMPLES = (
    ("ddpdoctor attach", "the job running on this host; asks which one if there are several"),
    ("ddpdoctor attach 4711", "the job that process 4711 belongs to: a rank, its launcher, a worker"),
    ("ddpdoctor attach --watch 10", "repeat every 10 seconds, until Ctrl-C"),
    ("ddpdoctor attach --run-dir node-a", "run on each node; then: ddpdoctor analyze node-a node-b"),
    (
        "ddpdoctor attach ddpdoctor-runs/20260102-030405-ab12 --dump",
        "ask a live `ddpdoctor run` to save a snapshot",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``attach``."""
    parser.add_argument(
        "target",
        metavar="PID|RUN_DIR",
        nargs="?",
        help=(
            "PID of any process in the job, or the run directory of a live `ddpdoctor run`; auto-detected "
            "if omitted"
        ),
    )
    group = parser.add_argument_group("looking")
    add_option(group, "--all", action="store_true", help="every job on this host, one after the other")
    add_option(
        group,
        "--watch",
        type=common.parse_seconds,
        metavar="SECONDS",
        help="repeat at this interval until Ctrl-C",
    )
    add_option(
        group,
        "--pause",
        action="store_true",
        help="pause each process for a few milliseconds while its stack is read (exact stacks)",
    )
    add_option(
        group,
        "--native",
        action="store_true",
        help="include native frames; each rank is paused for up to a second",
    )
    add_option(
        group,
        "--dump",
        action="store_true",
        help="ask a live `ddpdoctor run` to save a snapshot to RUN_DIR/snapshots; the job is not interrupted",
    )
    add_option(
        group, "--run-dir", metavar="DIR", help="save the snapshot there, for `analyze` and for sharing"
    )
    common.add_output_options(parser)
    common.add_selection_options(parser)
    common.add_fail_option(parser)
    common.add_verbosity_options(parser)


@dataclass(frozen=True)
class _Tools:
    """What judging and showing need."""

    options: argparse.Namespace
    plugins: Plugins
    selection: Selection
    outputs: tuple[common.Output, ...]
    display: Display

    def given(self, name: str) -> bool:
        """Whether a flag was given."""
        return bool(getattr(self.options, name, False))


def run(options: argparse.Namespace) -> int:
    """Find the job, look, judge, show."""
    from ddpdoctor.cli.arguments.select import choose_selection
    from ddpdoctor.cli.output.display import Display
    from ddpdoctor.cli.targets import find_targets, frames_of
    from ddpdoctor.plugins import load_plugins
    from ddpdoctor.watch.attach.jobs import follow_job
    from ddpdoctor.watch.attach.processes import read_processes

    target: str | None = getattr(options, "target", None)
    if getattr(options, "all", False) and target is not None:
        raise UsageError("--all cannot be combined with a PID or a directory", hint="ddpdoctor attach --all")
    plugins = load_plugins()
    tools = _Tools(
        options,
        plugins,
        choose_selection(options, {code: page.name for code, page in plugins.checks.pages.items()}),
        common.pair_outputs(options, plugins.renderers.names),
        Display.of(sys.stdout, no_color=getattr(options, "no_color", False)),
    )
    if tools.given("dump"):
        if tools.given("native"):
            raise UsageError(
                ("--dump cannot be combined with --native"),
                hint=f"ddpdoctor attach {target or 'RUN_DIR'} --native",
            )
        return _dump(target, tools)
    jobs = find_targets(target, everything=tools.given("all"))
    if len(jobs) > 1 and tools.outputs:
        raise UsageError(
            f"a report covers one job, and {len(jobs)} are running",
            hint=f"ddpdoctor attach {jobs[0].pid} --json F, or --all --run-dir DIR",
        )
    interval = getattr(options, "watch", None)
    code = _look_at_all(jobs, tools)
    while interval is not None:
        time.sleep(interval)
        processes = read_processes()
        followed = [follow_job(job, processes, frames_of) for job in jobs]
        jobs = [job for job in followed if job is not None]
        if not jobs:
            _complain("the job has ended")
            return code
        _complain(f"{datetime.now():%H:%M:%S}")
        code = _look_at_all(jobs, tools)
    return code


def _look_at_all(jobs: Sequence[FoundJob], tools: _Tools) -> int:
    from ddpdoctor.cli.output.display import print_text
    from ddpdoctor.cli.targets import describe_job
    from ddpdoctor.text.characters import neutralise

    codes = []
    for number, job in enumerate(jobs):
        if len(jobs) > 1:
            print_text(f"{'' if number == 0 else chr(10)}{neutralise(describe_job(job))}\n")
        codes.append(_look_at(job, tools, several=len(jobs) > 1))
    return max(codes)


def _look_at(job: FoundJob, tools: _Tools, *, several: bool) -> int:
    """Look at one job, judge it, show it; return the exit code."""
    started, began = datetime.now(timezone.utc), time.monotonic()
    look = _observe(job, tools)
    if look is None:
        _complain("the job has ended")
        return EXIT_FAILED
    report = make_report(
        job, look, started, time.monotonic() - began, tools.options, tools.plugins, tools.selection
    )
    if job.numbered == "order" and not any(stand.watched for stand in look.stands):
        _complain(
            "ranks are numbered in the order in which their processes started: no rank numbers were found"
        )
    return _show(report, tools, f"job-{job.pid}" if several else None)


def _observe(job: FoundJob, tools: _Tools) -> Standstill | None:
    from ddpdoctor.cli.output.waiting import make_progress
    from ddpdoctor.report.words import count
    from ddpdoctor.watch.attach.sight import STILL_S, Sight, wait_for
    from ddpdoctor.watch.live.native import LIMIT_S, look_inside
    from ddpdoctor.watch.live.ras import add_ras

    sight = Sight(job, pause=tools.given("pause"))
    progress = make_progress(sys.stderr, color=tools.display.color, quiet=tools.given("quiet"))
    try:
        progress.stage(f"sampling {count(len(job.ranks), 'rank')}", STILL_S)
        look = sight.observe(wait_for, lambda seen: _is_settled(seen, tools))
        if look is not None and tools.given("native"):
            progress.stage("native frames", LIMIT_S)
            look = look_inside(look)
        if look is not None and look.stage != "moving":
            look = add_ras(look)
    finally:
        progress.close()
    return look if look is not None and any(stand.alive for stand in look.stands) else None


def _is_settled(look: Standstill, tools: _Tools) -> bool:
    """Whether the checks name somebody: by proof, or because the job has stood still for long."""
    from ddpdoctor.watch.attach.sight import STILL_S
    from ddpdoctor.watch.live.judging import judge_look

    ruling = judge_look(look, tools.plugins.checks)
    watched = all(stand.watched for stand in look.stands if stand.alive)
    return ruling.proved or (ruling.stalled and (not watched or look.still_s >= STILL_S))


def make_report(
    job: FoundJob,
    look: Standstill,
    started: datetime,
    duration_s: float,
    options: argparse.Namespace,
    plugins: Plugins,
    selection: Selection,
) -> Report:
    """Judge a look."""
    from ddpdoctor.gather.scrub import scrub_argv
    from ddpdoctor.report.build import build_report
    from ddpdoctor.watch.attach.evidence import make_evidence

    return build_report(
        make_evidence(job, [look]),
        registry=plugins.checks,
        started_at=started,
        duration_s=duration_s,
        invocation=scrub_argv(options.invocation),
        selection=selection,
        extra_rows=[problem.to_row() for problem in plugins.problems],
    )


def _show(report: Report, tools: _Tools, folder: str | None) -> int:
    from ddpdoctor.cli.check import exit_code
    from ddpdoctor.cli.outputs import deliver, render_options

    kept = _keep(tools, folder)
    shown = render_options(
        tools.display, verbosity=common.verbosity(tools.options), pages=tools.plugins.checks.pages
    )
    failed = deliver(report, (*tools.outputs, *kept), tools.plugins.renderers, shown)
    return failed or exit_code(report, getattr(tools.options, "fail_on", "error"))


def _keep(tools: _Tools, folder: str | None) -> list[common.Output]:
    """Return the files of ``--run-dir``, whose directory is made."""
    asked = getattr(tools.options, "run_dir", None)
    if asked is None:
        return []
    path = Path(asked, folder) if folder else Path(asked)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise DoctorError(f"{path} cannot be created: {problem.strerror or problem}") from problem
    return [common.Output(name, str(path / f"report.{name}")) for name in ("json", "html")]


def _dump(target: str | None, tools: _Tools) -> int:
    """Let the supervisor of a live run look; judge what it saw as if we had looked ourselves."""
    from dataclasses import replace

    from ddpdoctor.cli.targets import find_run, frames_of
    from ddpdoctor.watch.attach.jobs import find_jobs
    from ddpdoctor.watch.attach.processes import read_processes
    from ddpdoctor.watch.attach.sight import STILL_S
    from ddpdoctor.watch.live.asking import ask_for_look, read_look
    from ddpdoctor.watch.live.judging import judge_look

    path = Path(target) if target is not None else None
    if path is None or not os.path.isdir(path / "processes"):
        raise UsageError(
            ("--dump needs the run directory of a live `ddpdoctor run`"),
            hint="ddpdoctor attach RUN_DIR --dump",
        )
    started, began = datetime.now(timezone.utc), time.monotonic()
    kept = ask_for_look(path)
    look = replace(read_look(kept), asked=False)
    brief = look.stage == "look" and look.still_s < STILL_S
    if brief and not judge_look(look, tools.plugins.checks).proved:
        look = replace(look, stage="brief")
    _complain(f"snapshot saved in {kept}; the job is still running")
    job = find_run(str(path), find_jobs(read_processes(), frames_of))
    spent = time.monotonic() - began
    report = make_report(job, look, started, spent, tools.options, tools.plugins, tools.selection)
    return _show(report, tools, None)


def _complain(text: str) -> None:
    from ddpdoctor.cli.output.display import complain

    complain(f"ddpdoctor: {text}")
