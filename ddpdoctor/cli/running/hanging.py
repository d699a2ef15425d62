"""Options of `run` on jobs that stand still, and what watches for them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.parsing import add_option
from ddpdoctor.cli.output.display import complain
from ddpdoctor.facts.hangs import HANG_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpdoctor.cli.running.together import Together
    from ddpdoctor.evidence.collectives import CallLog
    from ddpdoctor.evidence.training.fingerprints import Training
    from ddpdoctor.judge.registry import Registry
    from ddpdoctor.watch.live.asking import Reception
    from ddpdoctor.watch.live.comparing import CallWatch
    from ddpdoctor.watch.live.monitor import Monitor
    from ddpdoctor.watch.live.uneven import LoaderWatch
    from ddpdoctor.watch.rundir import RunDirectory

ON_HANG = ("auto", "report", "abort")
DUMP_SIGNALS = ("USR1", "USR2", "SIGUSR1", "SIGUSR2")
"""Signals that may ask for a look: the others have a meaning for the job that is not to be taken away."""


def add_hang_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options about hangs."""
    group = parser.add_argument_group("hang handling")
    add_option(
        group,
        "--on-hang",
        type=common.one_of("choice", ON_HANG),
        metavar="WHAT",
        help=(
            "auto: stop the job on a proven deadlock, report a stall; report: never stop it; abort: stop it "
            "on both (auto)"
        ),
    )
    add_option(
        group,
        "--hang-timeout",
        type=common.parse_seconds,
        metavar="SECONDS",
        help=f"report a stall as a hang after SECONDS ({HANG_S:g})",
    )
    add_option(
        group,
        "--stall-after",
        type=_parse_stall,
        metavar="auto|SECONDS",
        help=(
            "suspect a rank without progress after this time (auto: 10 s or ten median steps, whichever is "
            "longer)"
        ),
    )
    add_option(
        group,
        "--dump-signal",
        type=common.one_of("signal", DUMP_SIGNALS),
        metavar="NAME",
        help=(
            "SIGUSR1/SIGUSR2 sent to ddpdoctor saves a snapshot of all ranks to RUN_DIR/snapshots; the "
            "signal is not forwarded to the job"
        ),
    )


def _parse_stall(text: str) -> float | None:
    return None if text == "auto" else common.parse_seconds(text)


class Watching:
    """Makes what watches a job while it runs: nothing of it where nothing is watched.

    Args:
        options: of the command.
        directory: of the run.
        checks: gives the checks; called in the threads of what is made.
        together: the other tasks of the job, where each has a `run` of its own.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        directory: RunDirectory,
        checks: Callable[[], Registry],
        together: Together | None = None,
    ) -> None:
        self._together = together
        self._options = options
        self._directory = directory
        self._checks = checks
        self._wanted = not getattr(options, "no_watch", False)

    def make_monitor(self) -> Monitor | None:
        """Return what sees that the job stands still."""
        from ddpdoctor.watch.live.judging import judge_look
        from ddpdoctor.watch.live.monitor import Monitor
        from ddpdoctor.watch.live.policy import Policy

        if not self._wanted:
            return None
        policy = Policy(
            getattr(self._options, "on_hang", None) or "auto",
            getattr(self._options, "hang_timeout", None) or HANG_S,
            getattr(self._options, "stall_after", None),
        )
        return Monitor(
            self._directory.kept,
            Path.cwd(),
            lambda look: judge_look(look, self._checks()),
            policy,
            self._say_of_job,
            self._directory.private,
            self._together.make_exchange(self._directory) if self._together is not None else None,
        )

    def _say_of_job(self, text: str) -> None:
        if self._together is None:
            _say(text)
        else:
            self._together.tell(f"ddpdoctor: {text}")

    def make_comparing(self) -> CallWatch | None:
        """Return what compares the calls of ranks."""
        from ddpdoctor.watch.live.comparing import CallComparer, CallWatch
        from ddpdoctor.watch.live.judging import judge_calls

        if not self._wanted:
            return None
        comparer = CallComparer(
            self._directory.processes,
            Path.cwd(),
            lambda log: judge_calls(log, self._checks()) is not None,
        )
        return CallWatch(comparer, self._tell_calls)

    def make_loader_watch(self) -> LoaderWatch | None:
        """Return what compares the lengths of the ranks' loaders."""
        from ddpdoctor.watch.live.uneven import LoaderWatch

        return (
            LoaderWatch(self._directory.processes, Path.cwd(), self._tell_loaders) if self._wanted else None
        )

    def make_reception(self) -> Reception | None:
        """Return what takes looks at the job when somebody asks for one."""
        import signal

        from ddpdoctor.watch.live.asking import Reception

        if not self._wanted:
            return None
        name: str | None = getattr(self._options, "dump_signal", None)
        signum = signal.Signals[f"SIG{name.removeprefix('SIG')}"] if name is not None else None
        return Reception(self._directory, Path.cwd(), _say, signum)

    def _tell_calls(self, log: CallLog) -> None:
        from ddpdoctor.watch.live.judging import judge_calls

        first = judge_calls(log, self._checks())
        if first is not None:
            _say(f"{first.code}: {first.message} The job continues.")

    def _tell_loaders(self, training: Training) -> bool:
        from ddpdoctor.watch.live.judging import judge_loaders

        first = judge_loaders(training, self._checks())
        if first is None:
            return False
        where = f" ({first.where[0].file}:{first.where[0].line})" if first.where else ""
        _say(
            f"{first.code} is likely: {first.evidence[0].text}{where}; if the loop runs to its end, ranks "
            "with more batches hang waiting for the others."
        )
        return True


def _say(text: str) -> None:
    complain(f"ddpdoctor: {text}")
