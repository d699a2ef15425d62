"""Runs a light job under ``run`` again and again, and lets each operation of ours fail in turn once it was started.

A first run lists the places below ``ddpdoctor/`` that call an operation after the job's own Popen; then each of these
places fails in a run of its own, in a fork. Run as a script: ``python -m tests.watch.breaking FOLDER KIND PART PARTS``.
"""

from __future__ import annotations

import builtins
import errno
import functools
import importlib
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import ddpdoctor

HOME = str(Path(ddpdoctor.__file__).parent) + os.sep
JOB = """
import os, sys, time
print("worked", flush=True)
sys.stderr.write("on stderr\\n")
time.sleep(0.15)
open(os.environ["ENDED"], "w").close()
sys.exit(7)
"""
KINDS = {
    "os": OSError(errno.EIO, os.strerror(errno.EIO)),
    "memory": MemoryError("made to fail"),
    "type": TypeError("made to fail"),
}
"""What is raised: what the system says, what any call may, and what only a defect of ours would."""
DEPTH = 8
"""Frames above an operation among which one of ours makes it ours."""
LIMIT_S = 120


class Breaker:
    """Counts the operations of ours since the job was started, or lets those of one place fail.

    Args:
        target: the place, as `run` gives it; None counts.
        failure: what is raised there.
    """

    def __init__(self, target: str | None, failure: Exception | None) -> None:
        self.target, self.failure = target, failure
        self.armed = False
        self.seen: dict[str, None] = {}
        self._inside = threading.local()

    def run(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call, or fail."""
        if not self.armed or getattr(self._inside, "yes", False):
            return call(*args, **kwargs)
        self._inside.yes = True
        try:
            place = _find_place(name)
        finally:
            self._inside.yes = False
        if place is not None:
            self.seen.setdefault(place)
            if place == self.target and self.failure is not None:
                raise self.failure
        return call(*args, **kwargs)


def _find_place(name: str) -> str | None:
    frame: FrameType | None = sys._getframe(3)
    for _ in range(DEPTH):
        if frame is None:
            return None
        file = frame.f_code.co_filename
        if file.startswith(HOME) and file.endswith(".py"):
            if frame.f_code.co_name == "<module>":  # of a module that fails as a whole: its import is a place
                return None
            return f"{name} {file.removeprefix(HOME)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


class _File:
    """A file whose writing may fail."""

    def __init__(self, breaker: Breaker, file: Any) -> None:
        self._breaker, self._file = breaker, file

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if name in ("write", "flush", "close", "read"):
            return functools.partial(self._breaker.run, f"file.{name}", found)
        return found

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._breaker.run("file.close", self._file.close)

    def __iter__(self) -> Any:
        return iter(self._file)


def _wrap(breaker: Breaker, owner: Any, label: str, *names: str) -> None:
    for name in names:
        found = getattr(owner, name)

        def call(*args: Any, _found: Any = found, _label: str = f"{label}.{name}", **kwargs: Any) -> Any:
            return breaker.run(_label, _found, *args, **kwargs)

        setattr(owner, name, functools.wraps(found)(call))


def install(breaker: Breaker, job: str) -> None:
    """Put the breaker around the operations; it is armed by the Popen of the job."""
    start = subprocess.Popen.__init__

    def popen(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        if job in list(args)[:2]:
            start(self, args, *rest, **options)
            breaker.armed = True
        else:
            breaker.run("Popen", start, self, args, *rest, **options)

    mock.patch.object(subprocess.Popen, "__init__", popen).start()
    _wrap(breaker, subprocess.Popen, "Popen", "communicate", "kill", "send_signal", "wait")
    _wrap(breaker, threading.Thread, "Thread", "start", "join")
    _wrap(
        breaker, os, "os", "chmod", "close", "dup", "fstat", "kill", "listdir", "mkdir", "open", "pipe", "read",
        "readlink", "rename", "replace", "rmdir", "scandir", "stat", "statvfs", "unlink", "write",
    )  # fmt: skip
    _wrap(
        breaker, socket.socket, "socket", "accept", "bind", "close", "listen", "recv", "send", "sendall",
        "sendmsg", "settimeout", "shutdown",
    )  # fmt: skip
    _wrap(breaker, selectors.DefaultSelector, "selector", "register", "select", "unregister")
    _wrap(breaker, signal, "signal", "sigpending")
    _wrap(breaker, json, "json", "dumps", "loads")
    _wrap(breaker, builtins, "builtins", "__import__")
    opened = io.open

    def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        made = breaker.run("open", opened, file, mode, *args, **options)
        return _File(breaker, made) if breaker.armed and "b" in mode else made

    builtins.open = io.open = open_file
    for name in ("stdout", "stderr"):
        setattr(sys, name, _File(breaker, getattr(sys, name)))


def run_once(folder: Path, target: str | None, failure: Exception | None) -> dict[str, Any]:
    """Run the job once in a fork; return what came of it."""
    folder.mkdir(parents=True)
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _become_command(folder, target, failure)
    status = _wait(pid)
    (pids,) = [[int(word) for word in (folder / "pids").read_text().split()]]
    lived = [each for each in pids if _lives(each)]
    return {
        "target": target,
        "code": os.waitstatus_to_exitcode(status) if status is not None else "did not end",
        "ended": (folder / "ended").exists(),
        "stdout": (folder / "stdout").read_text(),
        "stderr": (folder / "stderr").read_text(),
        "left": lived,
        "private": (folder / "private").exists() and Path((folder / "private").read_text()).exists(),
        "seconds": round(time.monotonic() - began, 2),
    }


def _wait(pid: int) -> int | None:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _become_command(folder: Path, target: str | None, failure: Exception | None) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ["ENDED"] = str(folder / "ended")
    (folder / "pids").touch()
    script = folder / "job.py"
    script.write_text(
        JOB.replace("print(", f"open({str(folder / 'pids')!r}, 'a').write(f'{{os.getpid()}} ')\nprint(", 1)
    )
    make = tempfile.mkdtemp

    def make_private(*args: Any, **options: Any) -> str:
        made = str(make(*args, **options))
        if options.get("prefix") == "ddr-":
            (folder / "private").write_text(made)
        return made

    mock.patch.object(tempfile, "mkdtemp", make_private).start()
    breaker = Breaker(target, failure)
    install(breaker, str(script))
    from ddpdoctor.cli import main

    code = 250
    try:
        code = main(["run", "--run-dir", str(folder / "run"), "--", sys.executable, str(script)])
    except BaseException:
        breaker.armed = False
        traceback.print_exc()
    breaker.armed = False
    if target is None:
        (folder / "places").write_text("\n".join(breaker.seen))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def warm_up() -> None:
    """Import what every run would, once."""
    from ddpdoctor.cli.running.preparing import REPORTING
    from ddpdoctor.plugins import load_plugins

    load_plugins()
    for name in (
        *REPORTING,
        "ddpdoctor.cli.run",
        "ddpdoctor.watch.launch.job",
        "ddpdoctor.watch.live.monitor",
        "psutil",
    ):
        importlib.import_module(name)


def main() -> None:
    """List the places, let every so many-th fail, and write what came of it."""
    folder, kind, part, parts = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    warm_up()
    results = [run_once(folder / "all", None, None)]
    places = (folder / "all" / "places").read_text().splitlines()
    for number, place in enumerate(places):
        if number % parts == part:
            results.append(run_once(folder / str(number), place, KINDS[kind]))
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
