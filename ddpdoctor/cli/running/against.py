"""``run --against``: the job's script once more as a reference, and by how much the two differ."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.parsing import add_option
from ddpdoctor.cli.running.hidden_errors import First, log_limit, make_job_environment
from ddpdoctor.errors import UsageError

CHECK = "training.against"
"""The row of a report that judges it."""

if TYPE_CHECKING:
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.evidence.training.references import Reference
    from ddpdoctor.report.model import Report
    from ddpdoctor.watch.commandline import Split
    from ddpdoctor.watch.launch.reference import Plan


def add_against_options(parser: argparse.ArgumentParser) -> None:
    """Declare --against and --against-args."""
    group = parser.add_argument_group("comparing with a reference")
    add_option(
        group,
        "--against",
        type=common.parse_count,
        metavar="RANKS",
        help="after the job, run the first 8 steps of the script again on this number of ranks (usually 1), and "
        "report where losses, gradients or parameters differ; files that the script writes in these steps are "
        "overwritten",
    )
    add_option(
        group,
        "--against-args",
        metavar="ARGS",
        help="arguments appended to the script's own in the reference run, e.g. '--tp 1 --batch-size 32'",
    )


def check_against(options: argparse.Namespace, split: Split) -> None:
    """Refuse what would compare nothing; what the configuration says is taken where it fits.

    Raises:
        UsageError: --against with --no-watch, or with a command that launches its own ranks;
            --against-args without --against.
    """
    configured: frozenset[str] = getattr(options, "configured", frozenset())
    ranks = getattr(options, "against", None)
    if ranks is None:
        if hasattr(options, "against_args") and "against_args" not in configured:
            raise UsageError("--against-args needs --against", hint="--against 1")
        return
    if "against" in configured:
        return
    if getattr(options, "no_watch", False) or getattr(options, "watch_level", None) == "off":
        raise UsageError(
            "--against compares what is sampled in both runs, and sampling is off",
            hint="--against 1, without --no-watch and --watch-level off",
        )
    if split.is_command:
        raise UsageError(
            "--against chooses the number of ranks, and a command after -- launches its own",
            hint="ddpdoctor run --nproc 4 --against 1 train.py",
        )


def mark(options: argparse.Namespace, environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of the job, with what is compared where that was asked for."""
    if getattr(options, "against", None) is None:
        return environment
    from ddpdoctor.watch.launch.reference import make_variables

    return make_variables(environment)


def refer(evidence: Evidence, first: First, options: argparse.Namespace, *, alone: bool) -> Evidence:
    """Return the evidence of a job with what its reference showed, where one was asked for.

    Whatever happens here, the verdict on the job is still to be given.

    Args:
        evidence: of the job.
        first: its run.
        options: of the command.
        alone: this is not one of several tasks that share a job.
    """
    ranks = getattr(options, "against", None)
    if ranks is None:
        return evidence
    from ddpdoctor.evidence.training.references import Reference

    arguments = tuple(shlex.split(getattr(options, "against_args", None) or ""))
    made = Reference(ranks, state="skipped", arguments=arguments)
    try:
        if alone:
            made = _refer(evidence, first, options, ranks, arguments)
        else:
            made = dataclasses.replace(made, reason="one task of a job cannot run the others again")
    except KeyboardInterrupt:
        made = dataclasses.replace(made, reason="the reference run was interrupted")
    except Exception as problem:
        reason = f"the reference run failed: {type(problem).__name__}: {problem}"
        made = dataclasses.replace(made, reason=reason)
    size = max((each.world_size or 0 for each in evidence.processes if each.is_rank), default=0)
    return dataclasses.replace(evidence, references=(dataclasses.replace(made, job_ranks=size),))


def _refer(
    evidence: Evidence, first: First, options: argparse.Namespace, ranks: int, arguments: tuple[str, ...]
) -> Reference:
    from ddpdoctor.evidence.training.references import Reference
    from ddpdoctor.watch.against.sketches import read_steps
    from ddpdoctor.watch.launch.reference import Plan, explain_impossible, find_widening

    problem = explain_impossible(
        options.split,
        evidence.launch.nnodes,
        stdin=first.stdin.problem,
        interrupted=bool(first.result.signals),
        failed=bool(first.result.exit_code) or first.result.stopped,
    )
    if problem is None and not read_steps(first.directory.kept / "processes"):
        problem = "no optimizer step of this job was recorded"
    if problem is not None:
        return Reference(ranks, "skipped", problem, arguments)
    made = _run(first, options, Plan(ranks, arguments))
    widening = find_widening(made.steps)
    if widening > 1 and made.ended in ("ended", "enough"):
        wider = _run(first, options, Plan(ranks, arguments, widening))
        samples = next((each.samples for each in wider.steps if each.samples is not None), None)
        if samples is not None and samples.job_distinct == samples.reference_distinct:
            return wider
    return made


def tell_answer(report: Report) -> None:
    """Say in one line what the comparison gave, where one was asked for: a row that passed is not shown otherwise."""
    if not report.evidence.references:
        return
    from ddpdoctor.cli.output.display import complain

    (reference,) = report.evidence.references
    row = next((each for each in report.checks if each.id == CHECK), None)
    if row is None or any(each.code in row.codes for each in report.findings):
        return  # it was not selected, or the finding says it
    words = f"reference on {reference.ranks} rank{'s' * (reference.ranks > 1)}"
    if row.status != "pass":
        complain(f"ddpdoctor: --against: {row.reason}")
        return
    steps = sorted({each.step for each in reference.steps})
    shown = ", ".join(str(step) for step in steps)
    complain(
        f"ddpdoctor: --against: step{'s' * (len(steps) > 1)} {shown} agree{'s' * (len(steps) == 1)} with the {words}: "
        "samples, losses, gradients, updates"
    )


def _run(first: First, options: argparse.Namespace, plan: Plan) -> Reference:
    """Run the script as a reference and compare it with the job."""
    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.evidence.training.references import Reference
    from ddpdoctor.watch.launch.evidence import make_evidence
    from ddpdoctor.watch.launch.job import Company, make_command, run_job
    from ddpdoctor.watch.launch.reference import Enough, compare_runs, make_split, make_variables
    from ddpdoctor.watch.launch.rerun import default_limit
    from ddpdoctor.watch.rundir import make_run_directory

    name = "reference" if plan.widened == 1 else f"reference-{plan.widened}x"
    directory = make_run_directory(str(first.directory.kept / name))
    split = make_split(options.split, plan)
    limit = default_limit(first.result.duration_s)
    files = "" if plan.arguments else "; files that the script writes in these steps are overwritten"
    complain(f"ddpdoctor: --against: {_announce(plan)}, for at most {limit:.0f} s{files}")
    first.stdin.rewind()
    enough = Enough(directory.processes, plan.ranks)
    began = time.monotonic()
    try:
        with _put_aside(directory.path / "output.log"):
            environment = make_job_environment(options, first.applied.environ, directory)
            result = run_job(
                make_command(split),
                make_variables(environment, plan),
                directory,
                Company(enough=enough),
                log_limit=log_limit(options),
                limit_s=limit,
            )
    finally:
        directory.remove_private()
    compared = compare_runs(first.directory.kept / "processes", directory.kept / "processes")
    ended = "timed-out" if result.timed_out else "interrupted" if result.signals else "ended"
    seen = make_evidence(result, directory, split)
    error = next(
        (f"{each.type}: {each.message}"[:300] for each in seen.exceptions if each.rank is not None), None
    )
    output = os.path.relpath(directory.path / "output.log")
    complain(
        f"ddpdoctor: --against: the reference took {time.monotonic() - began:.0f} s; its output is in {output}"
    )
    return Reference(
        ranks=plan.ranks,
        reason=compared.missing,
        arguments=plan.arguments,
        widened=plan.widened,
        directory=directory.path.name if directory.note is None else str(directory.path),
        ended="enough" if result.stopped else ended,
        exit_code=None if result.stopped else result.exit_code,
        error=None if result.stopped else error,
        steps=compared.steps,
    )


@contextlib.contextmanager
def _put_aside(path: Path) -> Iterator[None]:
    """Let all that the reference prints go into a file: it is ended early, of which its launcher has much to tell."""
    kept: list[tuple[int, int]] = []
    try:
        with contextlib.suppress(OSError):
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError, ValueError):
                        stream.flush()
            for number in (1, 2):
                with contextlib.suppress(OSError):  # closed: it stays so
                    kept.append((number, os.dup(number)))
                    os.dup2(target, number)
            os.close(target)
        yield
    finally:
        for number, before in kept:
            os.dup2(before, number)
            os.close(before)


def _announce(plan: Plan) -> str:
    words = f"running the first steps of the script again on {plan.ranks} rank{'s' * (plan.ranks > 1)}"
    if plan.arguments:
        words += f" with {shlex.join(plan.arguments)}"
    if plan.widened > 1:
        words += f", each DataLoader with {plan.widened} times its batch size, for the same samples in a step"
    return words
