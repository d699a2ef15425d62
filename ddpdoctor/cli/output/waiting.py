"""Progress on stderr, only on a terminal: what is being waited for, for how long, and its limit."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from ddpdoctor.launch.request import Progress


class SilentProgress:
    """Says nothing: stderr is no terminal, or nobody wants to see it."""

    def stage(self, name: str, limit_s: float) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def close(self) -> None:
        """Ignore."""


class TerminalProgress:
    """One line that is rewritten, by rich."""

    def __init__(self, stream: TextIO, *, color: bool = True) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        from ddpdoctor.cli.output.display import is_unicode

        spinner = "dots" if is_unicode(stream) else "line"
        self._bar = Bar(
            SpinnerColumn(spinner),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=stream, no_color=not color, highlight=False),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._lock = threading.Lock()
        self._task = self._bar.add_task("starting", total=None)
        self._stage = "starting"
        self._closed = False
        self._bar.start()

    def stage(self, name: str, limit_s: float) -> None:
        """Show a new stage and its limit; the clock starts again."""
        with self._lock:
            self._stage = f"{name} (limit {limit_s:g} s)"
            self._bar.reset(self._task, description=self._stage)

    def note(self, text: str) -> None:
        """Show what is being done inside the stage."""
        from ddpdoctor.text.characters import neutralise

        with self._lock:
            self._bar.update(self._task, description=f"{self._stage}: {neutralise(text)}")

    def refresh(self) -> None:
        """Draw now instead of at the next tick."""
        self._bar.refresh()

    def close(self) -> None:
        """Clear the line and give the cursor back."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._bar.stop()


def make_progress(stream: TextIO | None, *, color: bool = True, quiet: bool = False) -> Progress:
    """Return progress for ``stream``: silent unless it is a terminal that can move its cursor."""
    if quiet or stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return SilentProgress()
    return TerminalProgress(stream, color=color)
