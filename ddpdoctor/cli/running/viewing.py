"""``run --live``: where the view is drawn, if anywhere."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ddpdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpdoctor.watch.live.memory import MemoryWatch
    from ddpdoctor.watch.live.monitor import Monitor
    from ddpdoctor.watch.rundir import RunDirectory
    from ddpdoctor.watch.view.live_view import LiveView


def add_live_option(group: argparse._ActionsContainer) -> None:
    """Declare --live."""
    group.add_argument(
        "--live",
        action="store_true",
        help="on a terminal: one row per rank below the job's output, with its step, current call and lag",
    )


def check_live(options: argparse.Namespace) -> None:
    """Refuse what would show nothing; what the configuration says is taken where it fits.

    Raises:
        UsageError: --live together with --no-watch.
    """
    if _is_typed(options) and getattr(options, "no_watch", False):
        raise UsageError(
            "--live cannot be combined with --no-watch",
            hint="--live, without --no-watch",
        )


def choose_viewing(
    options: argparse.Namespace, directory: RunDirectory
) -> Callable[[MemoryWatch, Monitor | None], LiveView | None] | None:
    """Return what makes the view of a run; None where it was not asked for."""
    if not getattr(options, "live", False):
        return None
    return lambda memory, monitor: make_view(options, directory, memory, monitor)


def make_view(
    options: argparse.Namespace, directory: RunDirectory, memory: MemoryWatch, monitor: Monitor | None
) -> LiveView | None:
    """Return the view; None where it cannot be drawn. Never raises: the job has been started.

    Args:
        options: of the command.
        directory: of the run.
        memory: of the job's processes.
        monitor: says whether the job stands still.
    """
    if monitor is None:
        return None
    from ddpdoctor.cli.output.display import complain

    try:
        descriptor = next((number for number in (2, 1) if os.isatty(number)), None)
        why = "neither stderr nor stdout is a terminal" if descriptor is None else _name_obstacle()
        if descriptor is None or why is not None:
            if _is_typed(options):
                complain(f"ddpdoctor: --live is not shown: {why}")
            return None
        return _make_view(options, directory, memory, monitor, descriptor)
    except Exception as problem:
        complain(f"ddpdoctor: --live is unavailable: {type(problem).__name__}: {problem}; the job continues")
        return None


def _make_view(
    options: argparse.Namespace,
    directory: RunDirectory,
    memory: MemoryWatch,
    monitor: Monitor,
    descriptor: int,
) -> LiveView:
    from pathlib import Path

    from ddpdoctor.cli.output.display import Display, complain
    from ddpdoctor.watch.view.live_view import LiveView
    from ddpdoctor.watch.view.rank_progress import ProgressReader
    from ddpdoctor.watch.view.screen import Screen

    stream = sys.stderr if descriptor == 2 else sys.stdout
    display = Display.of(stream, no_color=getattr(options, "no_color", False))
    return LiveView(
        Screen(descriptor),
        ProgressReader(directory.processes, Path.cwd(), memory.resident).read,
        lambda: monitor.said,
        color=display.color,
        ascii=display.ascii,
        tell=lambda text: complain(f"ddpdoctor: {text}"),
    )


def _name_obstacle() -> str | None:
    """Return why the terminal cannot show lines that stay at its bottom; None where it can."""
    term = os.environ.get("TERM", "")
    return f"the terminal does not support cursor movement (TERM={term})" if term in ("", "dumb") else None


def _is_typed(options: argparse.Namespace) -> bool:
    configured: frozenset[str] = getattr(options, "configured", frozenset())
    return bool(getattr(options, "live", False)) and "live" not in configured
