"""Options of `run` on jobs that stand still, and what watches for them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ddpdoctor.cli import options as common
from ddpdoctor.cli.parsing import add_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpdoctor.evidence import Evidence
    from ddpdoctor.evidence.collectives import CallLog
    from ddpdoctor.evidence.standstill import Standstill
    from ddpdoctor.evidence.training import Training
    from ddpdoctor.judge.finding import Finding
    from ddpdoctor.judge.registry import Registry
    from ddpdoctor.watch.asking import Reception
    from ddpdoctor.watch.comparing import CallWatch
    from ddpdoctor.watch.monitor import Monitor
    from ddpdoctor.watch.policy import Ruling
    from ddpdoctor.watch.rundir import RunDirectory
    from ddpdoctor.watch.uneven import LoaderWatch

ON_HANG = ("auto", "report", "abort")
DUMP_SIGNALS = ("USR1", "USR2", "SIGUSR1", "SIGUSR2")
"""Signals that may ask for a look: the others have a meaning for the job that is not to be taken away."""


def add_hang_options(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    group = parser.add_argument_group("when the job stands still")
    add_option(
        group,
        "--on-hang",
        type=common.one_of("choice", ON_HANG),
        metavar="WHAT",
        help="auto: end the job on proof, report a stall; report: end nothing; abort: end it on both (auto)",
    )
    add_option(
        group,
        "--hang-timeout",
        type=common.parse_seconds,
        metavar="SECONDS",
        help="a stall is confirmed after it (300)",
    )
    add_option(
        group,
        "--stall-after",
        type=_parse_stall,
        metavar="auto|SECONDS",
        help="a rank that does not move is suspected after it (auto: the longer of 10 s and ten median steps)",
    )
    add_option(
        group,
        "--dump-signal",
        type=common.one_of("signal", DUMP_SIGNALS),
        metavar="NAME",
        help="USR1 or USR2: sent to this command it keeps a look at all ranks in RUN_DIR/looks, and is not the job's",
    )


def _parse_stall(text: str) -> float | None:
    return None if text == "auto" else common.parse_seconds(text)


def make_monitor(
    options: argparse.Namespace, directory: RunDirectory, checks: Callable[[], Registry]
) -> Monitor | None:
    """Return what watches the job; None where nothing is watched.

    Args:
        options: of the command.
        directory: of the run.
        checks: gives the checks; called in the monitor's thread.
    """
    from pathlib import Path

    from ddpdoctor.cli.display import complain
    from ddpdoctor.watch.monitor import Monitor
    from ddpdoctor.watch.pace import HANG_S
    from ddpdoctor.watch.policy import Policy

    if getattr(options, "no_watch", False):
        return None
    policy = Policy(
        getattr(options, "on_hang", None) or "auto",
        getattr(options, "hang_timeout", None) or HANG_S,
        getattr(options, "stall_after", None),
    )
    return Monitor(
        directory.path,
        Path.cwd(),
        lambda look: judge_look(look, checks()),
        policy,
        lambda text: complain(f"ddpdoctor: {text}"),
        directory.private,
    )


def make_comparing(
    options: argparse.Namespace, directory: RunDirectory, checks: Callable[[], Registry]
) -> CallWatch | None:
    """Return what compares the calls of ranks while they run; None where nothing is watched.

    Args:
        options: of the command.
        directory: of the run.
        checks: gives the checks; called in the watch's thread.
    """
    from pathlib import Path

    from ddpdoctor.cli.display import complain
    from ddpdoctor.watch.comparing import CallComparer, CallWatch

    if getattr(options, "no_watch", False):
        return None

    def tell(log: CallLog) -> None:
        first = judge_calls(log, checks())
        if first is not None:
            complain(f"ddpdoctor: {first.code}: {first.message} The job goes on.")

    comparer = CallComparer(
        directory.processes, Path.cwd(), lambda log: judge_calls(log, checks()) is not None
    )
    return CallWatch(comparer, tell)


def make_loader_watch(
    options: argparse.Namespace, directory: RunDirectory, checks: Callable[[], Registry]
) -> LoaderWatch | None:
    """Return what compares the lengths of the ranks' loaders while they run; None where nothing is watched.

    Args:
        options: of the command.
        directory: of the run.
        checks: gives the checks; called in the watch's thread.
    """
    from pathlib import Path

    from ddpdoctor.cli.display import complain
    from ddpdoctor.watch.uneven import LoaderWatch

    if getattr(options, "no_watch", False):
        return None

    def tell(training: Training) -> bool:
        first = judge_loaders(training, checks())
        if first is not None:
            where = f" ({first.where[0].file}:{first.where[0].line})" if first.where else ""
            complain(
                f"ddpdoctor: {first.code} is near: {first.evidence[0].text}{where}; where the loop runs to its end, "
                "ranks with more batches wait for the others."
            )
        return first is not None

    return LoaderWatch(directory.processes, Path.cwd(), tell)


def judge_loaders(training: Training, registry: Registry) -> Finding | None:
    """Return what the checks find in the numbers of batches of a job that still runs; None for nothing."""
    from ddpdoctor.evidence import Evidence, Launch

    evidence = Evidence(launch=Launch(command="run"), training=(training,))
    return next(iter(_judge("training", evidence, registry, code="DAT003")), None)


def judge_calls(log: CallLog, registry: Registry) -> Finding | None:
    """Return what the checks of recorded calls find in those of a live job; None for nothing."""
    from ddpdoctor.evidence import Evidence, Launch

    evidence = Evidence(launch=Launch(command="run"), calls=(log,))
    found = _judge("calls", evidence, registry)
    return next((each for each in found if each.severity != "info"), None)


def make_reception(options: argparse.Namespace, directory: RunDirectory) -> Reception | None:
    """Return what takes looks at the job when somebody asks for one; None where nothing is watched."""
    import signal
    from pathlib import Path

    from ddpdoctor.cli.display import complain
    from ddpdoctor.watch.asking import Reception

    if getattr(options, "no_watch", False):
        return None
    name: str | None = getattr(options, "dump_signal", None)
    signum = signal.Signals[f"SIG{name.removeprefix('SIG')}"] if name is not None else None
    return Reception(directory, Path.cwd(), lambda text: complain(f"ddpdoctor: {text}"), signum)


def judge_look(look: Standstill, registry: Registry) -> Ruling:
    """Return what the checks of hangs say of one look."""
    from ddpdoctor.evidence import Evidence, Launch
    from ddpdoctor.watch.policy import Ruling

    evidence = Evidence(launch=Launch(command="run"), standstills=(look,))
    active = _judge("standstills", evidence, registry)
    if not active:
        return Ruling()
    first = active[0]
    proved = bool(first.details.get("proof"))
    unclear = tuple(first.details.get("unclear", ()))
    return Ruling(proved, not proved, first.code, first.message, tuple(first.ranks), unclear)


def _judge(kind: str, evidence: Evidence, registry: Registry, code: str | None = None) -> list[Finding]:
    """Return what those checks find that need one kind of evidence alone, root cause first; all, or of one code."""
    from ddpdoctor.judge.runner import run_checks
    from ddpdoctor.judge.verdict import order_findings

    checks = [
        each
        for each in registry.checks_of("run")
        if each.needs == (kind,) and (code is None or each.codes == (code,))
    ]
    _, findings = run_checks(checks, evidence)
    return [each for each in order_findings(findings, checks) if each.state == "active"]
