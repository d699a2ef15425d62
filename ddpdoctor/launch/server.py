"""The forkserver with torch imported, from which the agent, the ranks and the smoke tests are forked."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from ddpdoctor.launch.processes import SAFE_PATH, TERMINAL_SIGNALS

PRELOADED = "ddpdoctor.launch.preload"


class TorchServer:
    """Starts processes that have torch already; used by the supervisor only."""

    def __init__(self, workdir: Path, name: str) -> None:
        self._log = workdir / "server.log"
        # Its sockets go where ours are removed, its semaphores are called so that they can be: multiprocessing has
        # no public way to say so.
        settings = getattr(multiprocessing.current_process(), "_config", {})
        settings["tempdir"] = str(workdir)
        settings["semprefix"] = f"/{name}"
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")

    def start(self) -> None:
        """Start importing torch in the background, unless that has begun; returns at once.

        The import is not interrupted by Ctrl-C, which is the command's to handle, nor does it find a random.py or
        torch.py of the working directory.
        """
        if self.pid is not None:
            return
        self._context.set_forkserver_preload([PRELOADED])
        with _stderr_to(self._log), _off_terminal():
            resource_tracker.ensure_running()  # apart: it unblocks SIGINT itself when it has started
        with _stderr_to(self._log), _off_terminal(), _safe_path():
            forkserver.ensure_running()

    def process(self, target: Any, *args: Any) -> ForkServerProcess:
        """Return a process, not yet started, that will run ``target(*args)``."""
        return self._context.Process(target=target, args=args, daemon=False)

    def pipe(self) -> Any:
        """Return a connected pair (reader, writer)."""
        return self._context.Pipe(duplex=False)

    @property
    def pid(self) -> int | None:
        """Process id of the forkserver, where it can be known."""
        value = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
        return value if isinstance(value, int) else None

    @property
    def tracker_pid(self) -> int | None:
        """Process id of multiprocessing's resource tracker, where it can be known.

        It removes the named semaphores of processes that were killed, once all of them are gone: it must be
        the last to go.
        """
        value = getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None)
        return value if isinstance(value, int) else None

    def stop(self) -> None:
        """Let the forkserver and multiprocessing's resource tracker end; their children must be gone."""
        for holder, name in ((forkserver, "_forkserver"), (resource_tracker, "_resource_tracker")):
            end = getattr(getattr(holder, name, None), "_stop", None)
            if end is not None:
                with suppress(OSError, AssertionError):
                    end()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let a process that is started now inherit ``path`` as its stderr; its warnings are not the user's."""
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


@contextmanager
def _off_terminal() -> Iterator[None]:
    """Let a process that is started now be deaf to the terminal's signals; a signal mask outlives exec."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the working directory off ``sys.path`` of a process that is started now."""
    name, value = SAFE_PATH
    ours = name not in os.environ
    if ours:
        os.environ[name] = value
    try:
        yield
    finally:
        if ours:
            del os.environ[name]
