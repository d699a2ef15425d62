"""What stays beside a running job: one protocol, and one place where it is kept from harming the job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

MOST_LOST = 20
"""Different failures of ours that are remembered."""

T = TypeVar("T")


class Companion(Protocol):
    """Begins when the job has been started, and ends with it."""

    @property
    def lost(self) -> Sequence[str]:
        """What failed of it so far, in sentences for the report."""

    def start(self) -> object:
        """Begin."""

    def close(self) -> object:
        """End; also called where `start` failed."""


C = TypeVar("C", bound=Companion)


class Guard:
    """Calls what is ours while the job runs: whatever it raises is remembered, and the job goes on."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def __call__(self, what: str, call: Callable[[], T]) -> T | None:
        """Return what a call returns; None where it fails."""
        try:
            return call()
        except Exception as problem:
            self.note(f"{what}: {type(problem).__name__}: {problem}")
            return None

    def note(self, sentence: str) -> None:
        """Remember what failed, once."""
        if sentence not in self.lost and len(self.lost) < MOST_LOST:
            self.lost.append(sentence)


def end_thread(thread: threading.Thread, seconds: float | None = None) -> None:
    """Wait for a thread to end, if it was ever started.

    Args:
        thread: the thread.
        seconds: how long it is waited for at most.
    """
    if thread.ident is not None:
        thread.join(seconds)


class Companions:
    """The companions of one job. Nothing here raises.

    Args:
        guard: remembers what fails.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._begun: list[tuple[str, Companion]] = []

    def begin(
        self, what: str, make: Callable[[], C | None] | None, prepare: Callable[[C], object] | None = None
    ) -> C | None:
        """Make a companion and start it.

        Args:
            what: it does, for the report where it fails.
            make: gives it, or None where it is not wanted.
            prepare: is called with it before its start.

        Returns:
            The companion; None where there is none, or where it could not begin.
        """
        companion = self._guard(what, make) if make is not None else None
        if companion is None:
            return None
        self._begun.append((what, companion))

        def start() -> bool:
            if prepare is not None:
                prepare(companion)
            companion.start()
            return True

        return companion if self._guard(what, start) else None

    def close(self) -> None:
        """End all of them, whoever began last first."""
        for what, companion in reversed(self._begun):
            self._guard(what, companion.close)

    @property
    def lost(self) -> list[str]:
        """What failed, of the guard and of all companions."""
        return [*self._guard.lost, *(text for _, each in self._begun for text in each.lost)]
