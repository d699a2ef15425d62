"""Keeping hold of processes: nobody is left behind, whoever dies first."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable
from multiprocessing import connection

import psutil

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
SAFE_PATH = "PYTHONSAFEPATH", "ddpdoctor"
"""Any text in it keeps the working directory off ``sys.path`` under ``python -c``, which is how multiprocessing
starts a forkserver (Python 3.11, "PYTHONSAFEPATH"). Ours is known by its value, and `follow_parent` removes it."""
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)
"""What a terminal sends to all processes of its foreground group (termios(3), setsid(2))."""


def _prctl(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def adopt_orphans() -> bool:
    """Make this process the parent of all descendants whose own parent dies, so that they can be found."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def follow_parent(*, launches: bool = False) -> None:
    """Tie this process (started by a multiprocessing forkserver) to the process that asked for it.

    Leaves the terminal's process group, so that Ctrl-C reaches only the command itself; dies when the
    forkserver
    dies (kernel) or when the process that asked for it dies (a thread on its sentinel).

    Args:
        launches: this process will ask the same forkserver for more processes. Others give up their hold on
        it, or
            it would outlive its owner for as long as they live.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    _restore_defaults()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if launches:
        _share_forkserver()
    else:
        _leave_forkserver()
    parent = multiprocessing.parent_process()
    if parent is not None:
        thread = threading.Thread(
            target=_die_with, args=(parent.sentinel,), daemon=True, name="ddpdoctor-parent"
        )
        thread.start()


def _restore_defaults() -> None:
    """Undo what keeps the forkserver's import undisturbed; the user's code runs here as anywhere."""
    for number in TERMINAL_SIGNALS:
        with contextlib.suppress(OSError):
            while number in signal.sigpending() and signal.sigtimedwait([number], 0) is not None:
                pass  # came before this process had left the terminal's group
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)
    name, value = SAFE_PATH
    if os.environ.get(name) == value:
        del os.environ[name]


def _share_forkserver() -> None:
    """Let processes started from here come from the forkserver that started this one, torch already imported.

    multiprocessing documents that ("a child process will just reuse the forkserver started by its parent")
    but
    starts a second one (seen in Python 3.10 to 3.13), which would import torch once more. Where its internals
    look
    different nothing is changed and the second forkserver it is.
    """
    from multiprocessing import forkserver

    server = getattr(forkserver, "_forkserver", None)
    held = getattr(server, "_forkserver_alive_fd", None), getattr(server, "_forkserver_address", None)
    if server is not None and None not in held:
        server.ensure_running = lambda: None


def _leave_forkserver() -> None:
    from multiprocessing import forkserver

    server = getattr(forkserver, "_forkserver", None)
    descriptor = getattr(server, "_forkserver_alive_fd", None)
    if server is not None and isinstance(descriptor, int):
        with contextlib.suppress(OSError):
            os.close(descriptor)
        server._forkserver_alive_fd = None
        server._forkserver_address = None


def _die_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def list_descendants() -> list[psutil.Process]:
    """Return all live descendants of this process."""
    try:
        return psutil.Process().children(recursive=True)
    except psutil.Error:
        return []


def kill_processes(processes: Iterable[psutil.Process], *, grace_s: float = 0.0) -> list[int]:
    """Kill the processes and wait until they are gone.

    Args:
        processes: whom.
        grace_s: with more than 0, SIGTERM first and so many seconds before SIGKILL.

    Returns:
        Pids that are still there 5 s after SIGKILL: stuck in the kernel (D state).
    """
    alive = list(processes)
    if grace_s > 0:
        _signal_all(alive, signal.SIGTERM)
        _, alive = psutil.wait_procs(alive, timeout=grace_s)
    _signal_all(alive, signal.SIGKILL)
    _, alive = psutil.wait_procs(alive, timeout=5.0)
    return [process.pid for process in alive]


def _signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.send_signal(number)


def kill_descendants(keep: Iterable[int | None] = ()) -> list[int]:
    """Kill every descendant of this process but those in ``keep``; again while new ones appear."""
    kept = set(keep)
    for _ in range(5):
        found = [p for p in list_descendants() if p.pid not in kept]
        if not found:
            return []
        stuck = kill_processes(found)
        reap_children()
        if stuck:
            return stuck
        time.sleep(0.01)
    return []


def reap_children() -> None:
    """Collect orphans that were adopted and have ended, so that no zombie stays."""
    with contextlib.suppress(ChildProcessError, OSError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
