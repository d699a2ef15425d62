"""A look at a job of `ddpdoctor run` when somebody asks for one: over the run's private socket, or by a signal."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ddpdoctor.errors import DoctorError
from ddpdoctor.evidence.codec import decode, encode
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.keeping import write_below
from ddpdoctor.watch.listening import Listener
from ddpdoctor.watch.live.look import Looker
from ddpdoctor.watch.live.rank_rings import RankFinder
from ddpdoctor.watch.live.recorders import Recorders
from ddpdoctor.watch.live.stillness import read_node
from ddpdoctor.watch.rundir import RunDirectory

ADDRESS = "asked"
"""Name of the socket in the run's private directory."""
CONTROL = ".supervisor"
"""File below the run directory that says, while the job lives, where the socket is."""
SAMPLES_S = 1.0
"""Seconds between the two samples of a look."""
ANSWER_S = 120.0
"""A look at a thousand ranks takes a minute on two cores."""
MOST_LOOKS = 1000
"""Most looks of one run that are kept."""
CONTROL_BYTES = 4096
LOOK_BYTES = 64 << 20


class Reception:
    """Takes looks when it is asked to, in a thread of its own; nothing is done before that.

    Args:
        directory: of the run.
        root: the job's working directory.
        tell: shows one line to the person, of looks that a signal asked for.
        signum: this signal; None where none asks.
    """

    def __init__(
        self, directory: RunDirectory, root: Path, tell: Callable[[str], object], signum: int | None = None
    ) -> None:
        self.signum = signum
        self._directory, self._tell = directory, tell
        self._looker = Looker(root, read_node(os.environ), time.monotonic_ns())
        self._ranks = RankFinder(directory.processes, self._looker.read_tables)
        self._recorders = Recorders(directory.kept, directory.private)
        self._taking = threading.Lock()
        self._count = 0
        self._stop = threading.Event()
        self._listener = Listener(directory.private / ADDRESS, self._answer, "ddpdoctor-asked")
        self._announced = False
        self.lost: list[str] = []

    def start(self) -> None:
        """Begin to listen, and say below the run directory where.

        Raises:
            OSError: there can be no socket, or nothing can be said.
            RuntimeError: there can be no thread.
        """
        self._listener.open()
        self._write_control(self._directory.private / ADDRESS)
        self._announced = True

    def _write_control(self, address: Path) -> None:
        told = json.dumps({"socket": str(address), "pid": os.getpid()})
        write_below(self._directory.kept, CONTROL, told.encode())

    def close(self) -> None:
        """Stop to listen; a look that is being taken is given up."""
        self._stop.set()
        self._listener.close()
        if self._announced:
            with contextlib.suppress(OSError):
                (self._directory.kept / CONTROL).unlink()

    def take_later(self) -> None:
        """Take a look in a thread, for a signal."""
        threading.Thread(target=self._take_and_tell, name="ddpdoctor-look", daemon=True).start()

    def _take_and_tell(self) -> None:
        try:
            self._tell(f"snapshot: {self.take()}")
        except Exception as problem:  # ours; the job goes on
            self._tell(f"no snapshot was saved: {problem}")

    def _answer(self, question: bytes) -> bytes:
        try:
            if json.loads(question).get("ask") != "look":
                raise ValueError("the request is not known")
            answer = {"look": self.take().name}
        except Exception as problem:  # ours, or a question of nobody's; the next one is answered
            answer = {"problem": str(problem)}
        return json.dumps(answer).encode()

    def take(self) -> Path:
        """Take a look and write it down.

        Raises:
            ValueError: there is nothing to look at, or the job has ended meanwhile.
            OSError: it cannot be written.
        """
        with self._taking:
            if self._count >= MOST_LOOKS:
                raise ValueError(f"{MOST_LOOKS} snapshots are already saved")
            rings = self._ranks.find()
            if not rings:
                raise ValueError("no rank has created a process group yet")
            counts = [ring.read_count() for ring in rings]
            seen = self._looker.look(rings, interval_s=SAMPLES_S, wait=self._stop.wait)
            if seen is None:
                raise ValueError("the job has ended")
            moved = counts != [ring.read_count() for ring in rings]
            self._count += 1
            name = f"asked-{self._count:04d}"
            told = self._recorders.tell(seen, rings, name)
            asked = replace(told, asked=True, stage="moving" if moved else "look")
            write_below(self._directory.kept, f"snapshots/{name}.json", json.dumps(encode(asked)).encode())
            return self._directory.path / "snapshots" / f"{name}.json"


def ask_for_look(run: Path) -> Path:
    """Let the supervisor of a live run take a look; return the file in which it is.

    Args:
        run: the run directory.

    Raises:
        DoctorError: the run has ended, is not ours to ask, or could not look.
    """
    address = _read_control(run)
    asking = socket.socket(socket.AF_UNIX)
    with asking:
        try:
            asking.settimeout(ANSWER_S)
            asking.connect(str(address))
            asking.sendall(b'{"ask": "look"}')
            data = b""
            while len(data) <= CONTROL_BYTES and (part := asking.recv(CONTROL_BYTES)):
                data += part
            answer = json.loads(data)
        except (ConnectionError, FileNotFoundError) as problem:
            raise _say_ended(run) from problem
        except (OSError, ValueError, RecursionError) as problem:
            what = getattr(problem, "strerror", None) or str(problem)
            raise DoctorError(
                f"the run in {run} could not be reached: {what}", hint=f"ddpdoctor attach {run}"
            ) from problem
    name = answer.get("look") if isinstance(answer, dict) else None
    if not isinstance(name, str) or not name or os.path.basename(name) != name:
        why = answer.get("problem") if isinstance(answer, dict) else None
        raise DoctorError(
            f"the run in {run} saved no snapshot: {why or 'no reason given'}", hint=f"ddpdoctor attach {run}"
        )
    return run / "snapshots" / name


def _read_control(run: Path) -> Path:
    path = run / CONTROL
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            text = file.read(CONTROL_BYTES)
        address = Path(json.loads(text)["socket"])
        status = address.stat()
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != run.stat().st_uid:
            raise ValueError(f"{address} is not a socket of the run's user")
    except PermissionError as problem:
        raise DoctorError(
            f"the run in {run} belongs to another user", hint=f"sudo ddpdoctor attach {run} --dump"
        ) from problem
    except FileNotFoundError as problem:
        raise _say_ended(run) from problem
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise DoctorError(f"{path} cannot be read: {problem}", hint=f"ddpdoctor attach {run}") from problem
    return address


def _say_ended(run: Path) -> DoctorError:
    return DoctorError(
        f"there is no live run in {run}: it has ended, runs on another host, or was started with --no-watch",
        hint=f"ddpdoctor analyze {run}",
    )


def read_look(path: Path) -> Standstill:
    """Return a look that was written down.

    Raises:
        DoctorError: it cannot be read.
    """
    try:
        with open_regular(path) as file:
            return decode(Standstill, json.loads(file.read(LOOK_BYTES)))
    except (OSError, ValueError, RecursionError) as problem:
        raise DoctorError(f"{path} cannot be read: {problem}") from problem
