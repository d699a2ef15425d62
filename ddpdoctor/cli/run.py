"""``ddpdoctor run``: launch a script as torchrun would, stay beside it, and say what broke first."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.parsing import Parser, add_option, both_spellings
from ddpdoctor.cli.running.against import add_against_options, check_against, mark, refer, tell_answer
from ddpdoctor.cli.running.foreseeing import Foresight, add_foreseeing_options
from ddpdoctor.cli.running.hanging import Watching, add_hang_options
from ddpdoctor.cli.running.hidden_errors import (
    First,
    add_hidden_options,
    announce,
    check_options,
    choose,
    lay_toggles,
    log_limit,
    make_job_environment,
    run_again,
)
from ddpdoctor.cli.running.preparing import Preparation, Tools
from ddpdoctor.cli.running.telling import complain_of, tell_head, tell_lost
from ddpdoctor.cli.running.viewing import add_live_option, check_live, choose_viewing

if TYPE_CHECKING:
    from ddpdoctor.cli.output.display import Display
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.judge.registry import Registry
    from ddpdoctor.report.model import Job, Report
    from ddpdoctor.watch.commandline import Split
    from ddpdoctor.watch.launch.result import JobResult
    from ddpdoctor.watch.rundir import RunDirectory

EXAMPLES = (
    (
        "ddpdoctor run --nproc 4 train.py --epochs 3",
        "same as torchrun --nproc-per-node 4 train.py --epochs 3",
    ),
    ("ddpdoctor run --nproc 4 -m package.train", "a module"),
    ("ddpdoctor run -- accelerate launch train.py", "any command that starts Python ranks itself"),
    (
        "ddpdoctor run --nnodes 2 --node-rank 0 --master-addr node-a train.py",
        "torchrun's options are accepted",
    ),
    (
        "ddpdoctor run --blocking --nproc 2 train.py",
        "with CUDA_LAUNCH_BLOCKING=1, to get the true line of a CUDA error",
    ),
    (
        "ddpdoctor run --rerun auto --nproc 2 train.py",
        "the same, but only after such an error, in one rerun",
    ),
    (
        "ddpdoctor run --against 1 --nproc 4 train.py",
        "then the first steps on one rank, and where the two differ",
    ),
)
WATCH_LEVELS = ("off", "light", "normal", "deep")
"""Levels of watching as the start-up hook names them (``ddpdoctor_watch/core/budget.py``)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ours; torchrun's own are passed on as they are."""
    parser.usage = (
        "ddpdoctor run [options] [torchrun's options] SCRIPT [arguments of the script]\n"
        "       ddpdoctor run [options] [torchrun's options] -m MODULE [arguments of the module]\n"
        "       ddpdoctor run [options] -- COMMAND..."
    )
    group = parser.add_argument_group("watching")
    add_option(group, "--run-dir", metavar="DIR", help="run directory (ddpdoctor-runs/<time>-<id>)")
    add_option(
        group,
        "--log-limit",
        type=common.parse_count,
        metavar="MB",
        help="MB to keep of the start and of the end of each stream (64)",
    )
    add_option(
        group,
        "--nodes-wait",
        type=common.parse_seconds,
        metavar="SECONDS",
        help="how long a failed job waits for the reports of other nodes (3)",
    )
    add_live_option(group)
    add_option(
        group,
        "--watch-level",
        type=common.one_of("level", WATCH_LEVELS),
        metavar="LEVEL",
        help="how much of the training is sampled: off, light, normal or deep (normal)",
    )
    add_option(group, "--no-watch", action="store_true", help="launch without watching; for comparison")
    add_option(
        group,
        "--no-record",
        action="store_true",
        help="do not write error files for ranks that do not write one themselves",
    )
    add_foreseeing_options(group)
    add_hang_options(parser)
    add_hidden_options(parser)
    add_against_options(parser)
    common.add_output_options(parser)
    common.add_selection_options(parser)
    common.add_fail_option(
        parser,
        "exit 1 on findings of severity error or warning, or never, where the job ended well; without it the exit "
        "code is the job's",
    )
    common.add_verbosity_options(parser)


def separate(parser: Parser, arguments: Sequence[str]) -> tuple[list[str], Split]:
    """Tell our options from torchrun's and from the script's.

    Raises:
        UsageError: see `ddpdoctor.watch.commandline.split_arguments`.
    """
    from ddpdoctor.watch.commandline import split_arguments

    names = [(text, action.nargs != 0) for action in parser.actions() for text in action.option_strings]
    values = [spelling for text, takes in names if takes for spelling in both_spellings(text)]
    flags = [spelling for text, takes in names if not takes for spelling in both_spellings(text)]
    split = split_arguments(arguments, values, [*flags, "-vv"])
    return list(split.own), split


def run(options: argparse.Namespace) -> int:
    """Launch, watch, judge, show; return what the launched command would have returned."""
    from ddpdoctor.cli.output.display import Display, complain
    from ddpdoctor.cli.outputs import require_writable
    from ddpdoctor.cli.running.together import find_others
    from ddpdoctor.evidence.rounds import number_rounds
    from ddpdoctor.launch.torchcheck import require_installed_torch
    from ddpdoctor.watch.commandline import find_misplaced
    from ddpdoctor.watch.launch.clusters import ClusterWatch
    from ddpdoctor.watch.launch.desk import Desk
    from ddpdoctor.watch.launch.job import Company, make_command, run_job
    from ddpdoctor.watch.launch.rerun import look_at_stdin
    from ddpdoctor.watch.launch.script import check_script, describe_start_failure, refuse_notebook
    from ddpdoctor.watch.launch.waiting import RendezvousWatch
    from ddpdoctor.watch.rundir import make_run_directory

    split: Split = options.split
    refuse_notebook(split)
    if not split.is_command:  # which may have a Python of its own
        require_installed_torch()
    check_options(options)
    check_live(options)
    check_against(options, split)
    preparation = Preparation(options)
    display = Display.of(sys.stderr, no_color=getattr(options, "no_color", False))
    misplaced = find_misplaced(split)
    if misplaced:
        complain(
            f"ddpdoctor: {misplaced} comes after the script, so it is passed to the script; put ddpdoctor "
            "options before it"
        )
    started = datetime.now(timezone.utc)
    together = find_others(options, split)
    if not together.is_one_of_many:  # of these one writes them
        require_writable(options)
    directory = make_run_directory(together.run_directory or getattr(options, "run_dir", None))
    together.begin()
    if directory.note:
        complain(f"ddpdoctor: {directory.note}")
    problem = check_script(split)
    foresight = Foresight(options, split, preparation.finish, together.tell_first)

    def get_checks() -> Registry:
        return preparation.finish().plugins.checks

    def say(text: str) -> None:
        complain(f"ddpdoctor: {text}")

    def start_reading() -> None:
        together.outlive_requests()
        preparation.start()
        foresight.start()

    first: First | None = None
    try:
        if problem is None:
            command, stdin = make_command(split), look_at_stdin()
            if not together.is_one_of_many:
                announce(options, stdin)
            applied = lay_toggles(options, directory)
            environment = mark(options, make_job_environment(options, applied.environ, directory))
            watching = Watching(options, directory, get_checks, together)
            company = Company(
                launched=start_reading,
                desk=Desk(directory, split),
                reception=watching.make_reception(),
                waiting=RendezvousWatch(directory.processes, split, say),
                clusters=ClusterWatch(directory.processes, say),
                monitoring=watching.make_monitor,
                viewing=choose_viewing(options, directory),
                comparing=watching.make_comparing,
                counting=watching.make_loader_watch,
            )
            result = run_job(command, environment, directory, company, log_limit=log_limit(options))
            first = First(command, directory, applied, stdin, result, get_checks)
    except OSError as failure:
        directory.remove_if_empty()
        together.give_up()
        raise describe_start_failure(split, failure) from failure
    finally:
        if first is None:
            directory.remove_private()
    code = 1 if first is None else first.result.exit_code
    try:
        directory.remove_private()
        tools = preparation.finish()
        if first is not None:
            evidence = together.join(_gather(first, options), failed=code != 0)
            if evidence is None:
                return code
            evidence = _ask_scheduler(number_rounds(evidence))
            evidence = refer(evidence, first, options, alone=not together.is_one_of_many)
            report = _report(evidence, first.result, started, options, tools)
            if not together.is_one_of_many:
                report = _look_again(first, report, started, options, tools)
            report = foresight.join(report)
        else:
            report = _judge_unstarted(problem, directory, started, options, tools)
        shown_in = together.shown_in(directory)
        tell_lost(report, directory)
        _deliver(report, shown_in, display, options, tools)
        tell_answer(report)
        together.end()
        if not together.is_one_of_many:
            tell_head(report, directory)
        return _exit_code(code, report, options)
    except BaseException as failure:  # the job has ended as it has ended, whatever happens to us
        complain_of(failure, options)
        return code


def _gather(first: First, options: argparse.Namespace) -> Evidence:
    """Return what was seen here, and what other nodes have told."""
    from ddpdoctor.watch.launch.evidence import make_evidence
    from ddpdoctor.watch.nodes.sums import add_nodes

    evidence = make_evidence(first.result, first.directory, options.split, first.applied.told)
    return add_nodes(first.directory.kept, evidence)


def _ask_scheduler(evidence: Evidence) -> Evidence:
    """Return the evidence of a job that was told to end with why, as far as its scheduler says."""
    from ddpdoctor.gather.slurm import ask_why_ended

    if not any(end.interrupted and end.interrupted != "SIGINT" for end in evidence.job):
        return evidence
    why = ask_why_ended(os.environ)
    return dataclasses.replace(
        evidence, job=tuple(dataclasses.replace(end, ended_by=why) for end in evidence.job)
    )


def _look_again(
    first: First, report: Report, started: datetime, options: argparse.Namespace, tools: Tools
) -> Report:
    """Run the job once more where that was asked for and helps; its verdict with what that showed, else as it was."""
    try:
        choice = choose(options, first, report)
        if choice is None:
            return report
        if choice.problem is None:
            _keep(report, first.directory, tools)  # for who ends us during the second run
        rerun = run_again(choice, options, first, report.verdict.headline)
        evidence = dataclasses.replace(report.evidence, reruns=(rerun,))
        return _report(evidence, first.result, started, options, tools)
    except KeyboardInterrupt:  # before the second run, or after it
        return report


def _keep(report: Report, directory: RunDirectory, tools: Tools) -> None:
    from ddpdoctor.cli.outputs import render
    from ddpdoctor.errors import OutputError
    from ddpdoctor.report.registry import RenderOptions

    with contextlib.suppress(OutputError, OSError):
        _write_kept(directory, "json", render(report, "json", tools.plugins.renderers, RenderOptions()))


def _write_kept(directory: RunDirectory, name: str, text: str) -> str:
    """Write a report into the run directory, whatever the job has made of its path; return where it is."""
    from ddpdoctor.watch.keeping import write_below

    write_below(directory.kept, f"report.{name}", text.encode("utf-8", errors="backslashreplace"))
    return str(directory.path / f"report.{name}")


def _report(
    evidence: Evidence, result: JobResult, started: datetime, options: argparse.Namespace, tools: Tools
) -> Report:
    from ddpdoctor.gather.scrub import scrub_argv
    from ddpdoctor.report.build import build_report

    return build_report(
        evidence,
        registry=tools.plugins.checks,
        started_at=started,
        duration_s=result.duration_s,
        invocation=scrub_argv(options.invocation),
        selection=tools.selection,
        extra_rows=[problem.to_row() for problem in tools.plugins.problems],
        job=_describe_job(evidence),
    )


def _describe_job(evidence: Evidence) -> Job:
    from ddpdoctor.report.model import Job

    end = evidence.job[0]
    stopped_by = "ddpdoctor" if end.stopped else None
    return Job(
        1 if end.stopped else end.exit_code if end.signal is None else 128 + end.signal,
        end.signal,
        stopped_by,
    )


def _judge_unstarted(
    problem: object,
    directory: RunDirectory,
    started: datetime,
    options: argparse.Namespace,
    tools: Tools,
) -> Report:
    from ddpdoctor.gather.scrub import scrub_argv
    from ddpdoctor.report.build import build_report
    from ddpdoctor.report.model import Job
    from ddpdoctor.watch.launch.evidence import make_unstarted
    from ddpdoctor.watch.launch.script import ScriptProblem

    assert isinstance(problem, ScriptProblem)
    return build_report(
        make_unstarted(problem, options.split),
        registry=tools.plugins.checks,
        started_at=started,
        duration_s=0.0,
        invocation=scrub_argv(options.invocation),
        selection=tools.selection,
        job=Job(1),
    )


def _deliver(
    report: Report,
    directory: RunDirectory,
    display: Display,
    options: argparse.Namespace,
    tools: Tools,
) -> None:
    """Write the files, and the text to stderr: stdout belongs to the job."""
    from pathlib import Path

    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.cli.outputs import render, render_options, write_file
    from ddpdoctor.errors import OutputError

    plugins = tools.plugins
    shown = render_options(display, verbosity=common.verbosity(options), pages=plugins.checks.pages)
    written: list[str] = []
    for output in tools.outputs:
        try:
            text = render(report, output.format, plugins.renderers, shown)
            if output.path is None:
                _put(text)
                continue
            write_file(Path(output.path), text)
            written.append(output.path)
        except OutputError as problem:
            complain(problem.render())
    for name in ("json", "html"):
        try:
            written.append(_write_kept(directory, name, render(report, name, plugins.renderers, shown)))
        except OutputError as problem:
            complain(problem.render())
        except OSError as problem:
            reason = problem.strerror or problem
            complain(f"ddpdoctor: {directory.path}/report.{name} could not be written: {reason}")
    page = next((path for path in written if path.endswith(".html")), None)
    final = dataclasses.replace(shown, written=(page,) if page else ())
    with contextlib.suppress(OutputError):
        _put(render(report, "text", plugins.renderers, final))


def _put(text: str) -> None:
    """Write to stderr, where it is not closed: the files have it all the same."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _exit_code(code: int, report: Report, options: argparse.Namespace) -> int:
    """The job's own; --fail-on touches it only when it was given and the job ended well."""
    from ddpdoctor.cli.check import exit_code

    level = getattr(options, "fail_on", None)
    if code == 0 and level is not None:
        return exit_code(report, level)
    return code
