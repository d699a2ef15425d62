"""Calls that may hang, under a limit that holds: name look-ups and vendors' tools."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
D = TypeVar("D")


class Later(Generic[T]):
    """A call on its own daemon thread, so that one that never returns keeps nobody waiting.

    ``concurrent.futures`` is no help here: it joins its threads when the interpreter ends, and a
    ``getaddrinfo`` that waits for a dead DNS server cannot be cancelled.
    """

    def __init__(self, function: Callable[[], T], name: str = "ddpdoctor-gather") -> None:
        self._function = function
        self._done = threading.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        try:
            self._value.append(self._function())
        except BaseException as problem:
            self._error = problem
        finally:
            self._done.set()

    def result(self, limit_s: float) -> T:
        """Return what the call gave, waiting at most ``limit_s`` seconds.

        Raises:
            TimeoutError: it has not returned yet.
            Exception: whatever the call raised.
        """
        if not self._done.wait(max(0.0, limit_s)):
            raise TimeoutError(f"no answer within {limit_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value[0]

    def result_or(self, default: D, limit_s: float) -> T | D:
        """Return what the call gave, or ``default`` when it failed or is late."""
        try:
            return self.result(limit_s)
        except Exception:
            return default


def call_within(limit_s: float, function: Callable[[], T]) -> T:
    """Call ``function`` and wait at most ``limit_s`` seconds for it.

    Raises:
        TimeoutError: it has not returned within the limit; it is left alone.
        Exception: whatever ``function`` raised.
    """
    return Later(function).result(limit_s)


class ToolError(Exception):
    """An external tool is missing, was too slow or failed; the message says which, in one line.

    Args:
        message: one line.
        output: what the tool had printed, for those that explain themselves there.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def find_tool(name: str) -> str | None:
    """Return the path of a command, None where it is not installed."""
    return shutil.which(name)


def run_tool(command: Sequence[str], limit_s: float) -> str:
    """Run a vendor's tool and return its standard output.

    A tool that is stuck in its driver cannot even be killed; it is left behind rather than waited for
    (``subprocess.run`` would wait for ever after its time-out).

    Raises:
        ToolError: the tool is missing, too slow or ended with another code than 0.
    """
    name = os.path.basename(command[0])
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as problem:
        raise ToolError(f"{name}: {problem.strerror or problem}") from problem
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as problem:
        killed = _kill_group(process)
        stuck = "" if killed else "; it did not die of SIGKILL and is stuck in the kernel"
        raise ToolError(f"{name} did not respond within {limit_s:g} s{stuck}") from problem
    if process.returncode != 0:
        said = (errors.strip() or output.strip() or "no message").splitlines()[0]
        raise ToolError(f"{name} exited with code {process.returncode}: {said}", output + errors)
    return output


def _kill_group(process: subprocess.Popen[str]) -> bool:
    """Kill the tool and what it started; tell whether it is gone within half a second."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    end = time.monotonic() + 0.5
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    return process.poll() is not None
