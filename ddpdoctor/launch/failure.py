"""What is known of a rank process that did not end well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankFailure:
    """A rank that failed, as the process that started it knows it."""

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    message: str | None = None

    @classmethod
    def of(cls, rank: int, pid: int, code: int | None, message: str | None = None) -> RankFailure:
        """Read an exit code as multiprocessing gives it: negative for a signal."""
        died = code is not None and code < 0
        return cls(rank, pid, None if died else code, -code if died and code is not None else None, message)
