"""Ctrl-C, SIGTERM and SIGHUP end a check in order: all is torn down and the report written."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Remembers the first signal that asked the command to end; a second Ctrl-C ends the waiting at once."""

    def __init__(self) -> None:
        self.name: str | None = None
        """Name of the signal, e.g. ``SIGINT``; None while nobody asked."""
        self.count = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays in force
                    self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.name is None:
            self.name = signal.Signals(number).name
