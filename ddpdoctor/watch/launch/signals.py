"""Waiting for signals that are blocked, also across a stop of our own process."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from typing import NamedTuple

_SET_BYTES, _INFO_INTS = 1024, 64
"""Room for a sigset_t and a siginfo_t of any C library (glibc: 128 bytes each)."""


class Heard(NamedTuple):
    """A signal that came."""

    number: int
    code: int
    """si_code: who sent it (sigaction(2))."""


class SignalWait:
    """sigtimedwait(2) for a set of signals that are blocked in every thread.

    Not `signal.sigtimedwait`: where our process is stopped while it waits and goes on after the time is over (Ctrl-Z
    and fg), CPython makes a result of memory that nobody has written to.

    Args:
        numbers: of the signals.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._libc = ctypes.CDLL(None)
        self._set = ctypes.create_string_buffer(_SET_BYTES)
        self._libc.sigemptyset(self._set)
        for number in numbers:
            self._libc.sigaddset(self._set, int(number))

    def __call__(self, seconds: float) -> Heard | None:
        """Return the next signal; None when none came in time, or when the wait was broken off."""
        info = (ctypes.c_int * _INFO_INTS)()
        rest, whole = math.modf(seconds)
        limit = (ctypes.c_long * 2)(int(whole), int(rest * 1e9))
        number = self._libc.sigtimedwait(self._set, info, limit)
        # si_signo, si_errno, si_code are its first members on every Linux but MIPS
        return Heard(number, info[2]) if number > 0 else None
