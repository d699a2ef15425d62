"""``run``'s options that bring hidden errors up: toggles for the job, and running it once more with one."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.parsing import add_option
from ddpdoctor.cli.running.hanging import Watching
from ddpdoctor.cli.running.viewing import choose_viewing
from ddpdoctor.errors import UsageError

if TYPE_CHECKING:
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.evidence.job import Rerun
    from ddpdoctor.judge.registry import Registry
    from ddpdoctor.report.model import Report
    from ddpdoctor.watch.launch.rerun import Choice, Stdin
    from ddpdoctor.watch.launch.result import JobResult
    from ddpdoctor.watch.launch.toggles import Applied
    from ddpdoctor.watch.rundir import RunDirectory

LEVELS = ("info", "detail")
RERUNS = ("blocking", "detail", "auto")


def add_hidden_options(parser: argparse.ArgumentParser) -> None:
    """Declare --blocking, --debug, --rerun and --rerun-limit."""
    group = parser.add_argument_group("debugging (surface asynchronous / masked errors)")
    group.add_argument(
        "--blocking",
        action="store_true",
        help="set CUDA_LAUNCH_BLOCKING=1, so that a CUDA error is raised at the line that caused it",
    )
    group.add_argument(
        "--debug",
        type=common.one_of("level", LEVELS),
        metavar="LEVEL",
        help="info or detail: set the debug variables of torch, c10d and NCCL",
    )
    group.add_argument(
        "--rerun",
        type=common.one_of("way", RERUNS),
        metavar="HOW",
        help=(
            "on an error with an unreliable stack trace, rerun the command once with debugging on: blocking "
            "(CUDA errors), detail (collective mismatches) or auto"
        ),
    )
    add_option(
        group,
        "--rerun-limit",
        type=common.parse_seconds,
        metavar="SECONDS",
        help="time limit of the rerun (three times the first run plus 60 s)",
    )


def check_options(options: argparse.Namespace) -> None:
    """Refuse what would do nothing; what the configuration says is taken where it fits.

    Raises:
        UsageError: --rerun together with --no-watch, or --rerun-limit without --rerun.
    """
    configured: frozenset[str] = getattr(options, "configured", frozenset())
    rerun = getattr(options, "rerun", None)
    if getattr(options, "no_watch", False) and rerun is not None and "rerun" not in configured:
        raise UsageError(
            f"--rerun {rerun} cannot be combined with --no-watch",
            hint=f"--rerun {rerun}, without --no-watch",
        )
    if rerun is None and hasattr(options, "rerun_limit") and "rerun_limit" not in configured:
        raise UsageError("--rerun-limit needs --rerun", hint="--rerun auto")


def lay_toggles(options: argparse.Namespace, directory: RunDirectory) -> Applied:
    """Return the environment with the toggles that were asked for; what the user set himself is kept and said."""
    import os

    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.watch.launch import toggles

    chosen = [toggles.BLOCKING] if getattr(options, "blocking", False) else []
    if getattr(options, "debug", None) is not None:
        chosen.append(options.debug)
    wanted: dict[str, str] = {}
    for toggle in chosen:
        torch = toggles.find_torch()
        wanted.update(toggles.choose_variables(toggle, torch, directory.path / "recorder-"))
        name = "--blocking" if toggle == toggles.BLOCKING else f"--debug {toggle}"
        complain(f"ddpdoctor: {name}: {toggles.COSTS[toggle]}")
    applied = toggles.apply_toggles(os.environ, wanted)
    for name, value in applied.kept.items():
        complain(f"ddpdoctor: {name}={value} was already set and is kept")
    return applied


@dataclass(frozen=True, slots=True)
class First:
    """The run that failed, and what it was started with."""

    command: Sequence[str]
    directory: RunDirectory
    applied: Applied
    stdin: Stdin
    result: JobResult
    checks: Callable[[], Registry]
    """Gives the checks that watch whether a job gets on."""


def announce(options: argparse.Namespace, stdin: Stdin) -> None:
    """Say before the first run what will keep a second one from being made."""
    from ddpdoctor.cli.output.display import complain

    if getattr(options, "rerun", None) is not None and stdin.problem is not None:
        complain(f"ddpdoctor: --rerun {options.rerun} skipped: stdin is not replayable")


def choose(options: argparse.Namespace, first: First, report: Report) -> Choice | None:
    """Return whether and how the job is run again; None where it was not asked for or would show nothing more."""
    asked = getattr(options, "rerun", None)
    if asked is None:
        return None
    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.watch.launch.rerun import choose_rerun
    from ddpdoctor.watch.launch.toggles import find_torch

    choice = choose_rerun(
        asked,
        # Who was seen to stand still has been named with both lines already.
        [each.code for each in report.findings if each.role == "cause" and not first.result.stopped],
        report.evidence,
        first.applied.environ,
        stdin=first.stdin,
        interrupted=bool(first.result.signals),
        torch=find_torch(),
    )
    failed = first.result.exit_code or first.result.stopped
    if choice is None and failed and report.verdict.code is not None:
        complain(
            f"ddpdoctor: --rerun {asked}: not rerun; it would show nothing more about {report.verdict.code}"
        )
    elif choice is not None and choice.problem is not None:
        complain(f"ddpdoctor: --rerun {asked}: not rerun: {choice.problem}")
    return choice


def run_again(choice: Choice, options: argparse.Namespace, first: First, headline: str) -> Rerun:
    """Run the job once more and return what was seen; whatever happens here, the first verdict is still to be given.

    Args:
        choice: how.
        options: of the command.
        first: the run that failed.
        headline: of the first verdict, said before.
    """
    from ddpdoctor.watch.launch.rerun import default_limit, describe_skipped

    if choice.problem is not None:
        return describe_skipped(choice)
    limit = getattr(options, "rerun_limit", None) or default_limit(first.result.duration_s)
    began = time.monotonic()
    try:
        return _run_again(choice, options, first, headline, limit)
    except KeyboardInterrupt:
        return dataclasses.replace(describe_skipped(choice), state="interrupted", reason=None)
    except Exception as problem:
        seconds = time.monotonic() - began
        reason = f"the rerun failed after {seconds:.1f} s: {type(problem).__name__}: {problem}"
        return dataclasses.replace(describe_skipped(choice), reason=reason)


def _run_again(
    choice: Choice, options: argparse.Namespace, first: First, headline: str, limit: float
) -> Rerun:
    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.watch.launch import toggles
    from ddpdoctor.watch.launch.evidence import make_evidence
    from ddpdoctor.watch.launch.job import Company, run_job
    from ddpdoctor.watch.launch.rerun import describe_rerun, keep_stdout_single
    from ddpdoctor.watch.rundir import make_run_directory

    directory = make_run_directory(str(first.directory.kept / f"rerun-{choice.toggle}"))
    torch = toggles.find_torch()
    wanted = toggles.choose_variables(choice.toggle, torch, directory.path / "recorder-")
    name, value = toggles.find_decisive(choice.toggle, torch)  # goes before what the user has set
    before = {key: old for key, old in first.applied.environ.items() if key != name}
    applied = toggles.apply_toggles(before, wanted)
    complain(f"ddpdoctor: {headline}")
    complain(
        f"ddpdoctor: --rerun: rerunning the same command with {name}={value}, for at most {limit:.0f} s; "
        f"{toggles.COSTS[choice.toggle]}"
    )
    first.stdin.rewind()
    watching = Watching(options, directory, first.checks)
    try:
        with keep_stdout_single():
            environment = make_job_environment(options, applied.environ, directory)
            result = run_job(
                first.command,
                environment,
                directory,
                Company(
                    reception=watching.make_reception(),
                    monitoring=watching.make_monitor,
                    viewing=choose_viewing(options, directory),
                ),
                log_limit=log_limit(options),
                limit_s=limit,
            )
    finally:
        directory.remove_private()
    evidence: Evidence = make_evidence(result, directory, options.split, applied.told)
    state = "timed-out" if result.timed_out else "interrupted" if result.signals else "ended"
    state = "stopped" if result.stopped else state
    shown = directory.path.name if directory.note is None else str(directory.path)
    return describe_rerun(
        choice, evidence, state=state, limit_s=limit, variables=applied.told, directory=shown
    )


def make_job_environment(
    options: argparse.Namespace, environ: Mapping[str, str], directory: RunDirectory
) -> dict[str, str]:
    """Return the environment of a run as the options want it."""
    from ddpdoctor.watch.launch.job import make_environment

    made = make_environment(
        environ,
        directory,
        watch=not getattr(options, "no_watch", False),
        record=not getattr(options, "no_record", False),
        level=getattr(options, "watch_level", None),
    )
    if getattr(options, "nodes_wait", None) is not None:
        made["DDPDOCTOR_NODES_WAIT"] = str(options.nodes_wait)
    return made


def log_limit(options: argparse.Namespace) -> int:
    """Return the bytes that are kept of each end of a stream."""
    return int(getattr(options, "log_limit", 64)) << 20
