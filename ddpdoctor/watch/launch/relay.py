"""Carrying the output of the ranks: to where it would have gone, and into a bounded file per process and stream.

A process of the job asks over a Unix socket for streams of its own and puts them on its descriptors 1 and 2: a
pseudo-terminal where the real stream is a terminal (so that ``isatty`` stays true), a pipe elsewhere. Bytes are
passed on as they come, in order, unchanged.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import json
import os
import pty
import select
import selectors
import socket
import struct
import termios
import threading
import time
import tty
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.watch.keeping import create_below
from ddpdoctor.watch.run_companions import MOST_LOST, end_thread

if TYPE_CHECKING:
    from ddpdoctor.watch.view.screen import Screen

CHUNK = 1 << 16
HEAD_BYTES = 64 << 20
"""What is kept of the beginning of each stream, and as much of the end (design: Run directory)."""
DRAIN_S = 2.0
"""How long output that is still on its way is waited for, in all, after the job has ended."""
DRAIN_BYTES = 64 << 20
"""How much of it is carried at most: a process that the job left behind may write for ever. 64 ranks with both
pipes full have 8 MB (pipe(7): 64 KiB each)."""


CLOSING_S = 1.0
"""How soon the thread sees that it is to end where it could not be told."""
RETRY_S = 0.01
"""After a failure of ours, so that one which stays does not take a core."""


class BoundedLog:
    """A file that keeps the first and the last ``limit`` bytes of a stream.

    The tail is a second file, written in turns with a third, so that memory stays small and nothing is copied while the
    job runs; `close` joins them and says how much was left out.

    Args:
        folder: the run directory, or one that serves as such.
        name: of the file, relative to it.
        limit: bytes kept of each end.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, folder: Path, name: str, limit: int = HEAD_BYTES) -> None:
        self._folder, self._name, self._limit = folder, name, limit
        self._file = create_below(folder, name)
        self._size = 0
        self._tails: list[str] = []
        self._tail_size = 0
        self.lost: str | None = None
        """Why nothing more is written, e.g. a full disk."""

    def write(self, data: bytes) -> None:
        """Append; a failure is remembered and never raised."""
        if self.lost is not None:
            return
        try:
            self._append(data)
        except Exception as problem:
            self._lose(problem)

    def _lose(self, problem: Exception) -> None:
        why = getattr(problem, "strerror", None) or f"{type(problem).__name__}: {problem}"
        self.lost = self.lost or f"{self._name.rpartition('/')[2]}: {why}"

    def _append(self, data: bytes) -> None:
        room = max(0, self._limit - self._size)
        self._size += len(data)
        if room:
            self._write_all(data[:room])
            data = data[room:]
        if not data:
            return
        if not self._tails or self._tail_size >= self._limit:
            self._next_tail()
        self._write_all(data)
        self._tail_size += len(data)

    def _next_tail(self) -> None:
        self._file.close()
        while len(self._tails) > 1:
            (self._folder / self._tails.pop(0)).unlink()
        name = f"{self._name}.tail{self._size}"
        self._file = create_below(self._folder, name)
        self._tails.append(name)
        self._tail_size = 0

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        """Join the parts; what was left out is said in the file itself."""
        try:
            self._file.close()
            self._join()
        except Exception as problem:
            self._lose(problem)

    def _join(self) -> None:
        if not self._tails:
            return
        tails = [self._folder / name for name in self._tails]
        kept = sum(path.stat().st_size for path in tails)
        skip = max(0, kept - self._limit)
        left_out = self._size - self._limit - kept + skip
        with (self._folder / self._name).open("ab") as whole:
            if left_out > 0:
                whole.write(f"\n[ddpdoctor: {left_out} bytes omitted here]\n".encode())
            for path in tails:
                with path.open("rb") as part:
                    part.seek(min(skip, path.stat().st_size))
                    skip = max(0, skip - path.stat().st_size)
                    while chunk := part.read(1 << 20):
                        whole.write(chunk)
                path.unlink()


@dataclass(slots=True)
class _Stream:
    """One end that is read, where its bytes go, and the file that keeps them."""

    source: int
    target: int
    log: BoundedLog
    terminal: bool = False
    """Whether it goes to a terminal."""


class Relay:
    """Hands out streams to the processes of a job and carries what they write.

    A process that was given streams depends on us: whatever fails of ours, its end is read on.

    Args:
        folder: the run directory.
        address: of the socket at which streams are asked for.
        limit: bytes kept of each end of a stream.

    Raises:
        OSError: there can be no socket; the processes of the job keep the streams that they have.
    """

    def __init__(self, folder: Path, address: Path, *, limit: int = HEAD_BYTES) -> None:
        self._folder, self._limit = folder, limit
        self._streams: dict[int, _Stream] = {}
        self._closing = False
        self.screen: Screen | None = None
        """Where lines of ours stand on the terminal that the output goes to."""
        self._open_line = False
        """What the terminal got last is no whole line."""
        self.lost: list[str] = []
        with contextlib.ExitStack() as opened:
            self._targets = tuple(_duplicate(number, opened) for number in (1, 2))
            self._selector = opened.enter_context(selectors.DefaultSelector())
            self._wake, self._waker = map(opened.enter_context, socket.socketpair())
            self._listener = opened.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(str(address))
            os.chmod(address, 0o600)
            self._listener.listen(128)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._selector.register(self._wake, selectors.EVENT_READ, lambda: self._wake.recv(16))
            self._opened = opened.pop_all()
        self._thread = threading.Thread(target=self._run, name="ddpdoctor-relay", daemon=True)

    def start(self) -> None:
        """Begin to carry. Until then the process has no thread of ours and may still fork safely.

        Raises:
            RuntimeError: there can be no thread: who asks for streams is refused, and keeps those that it has.
        """
        try:
            self._thread.start()
        except BaseException:
            self._listener.close()
            raise

    @staticmethod
    def describe_targets() -> str:
        """Return which files descriptors 1 and 2 are, so that a process only swaps those it inherited."""
        return ",".join(f"{(s := os.fstat(fd)).st_dev}:{s.st_ino}:{s.st_rdev}" for fd in (1, 2))

    def resize(self) -> None:
        """Give the pseudo-terminals the size that the real one has now."""
        for stream in list(self._streams.values()):
            with contextlib.suppress(OSError):
                _copy_size(stream.target, stream.source)

    def close(self) -> None:
        """Carry what is still on its way, then stop.

        A reader of our own output that is slow is waited for, as the ranks would have had to; a process that outlives
        the job and goes on writing is not.
        """
        self._closing = True
        with self._opened:  # whatever fails before, all is closed
            with contextlib.suppress(OSError):  # then the thread finds out by itself
                self._waker.send(b"x")
            end_thread(self._thread)
            for stream in list(self._streams.values()):
                self._end(stream)

    def _run(self) -> None:
        waited = 0.0
        left = DRAIN_BYTES
        while not (self._closing and (waited >= DRAIN_S or left <= 0 or not self._streams)):
            began, closing = time.monotonic(), self._closing
            try:
                ready = self._selector.select(DRAIN_S if closing else CLOSING_S)
            except Exception as problem:
                self._note_failure("output of the job", problem)
                ready = []
                time.sleep(RETRY_S)
            idle = time.monotonic() - began
            carried = sum(self._serve(key.data) for key, _ in ready)
            if closing:
                waited += idle if carried else time.monotonic() - began
                left -= carried

    def _serve(self, data: _Stream | Callable[[], object]) -> int:
        """Carry what has come on a stream, or answer; return how many bytes were carried."""
        try:
            if isinstance(data, _Stream):
                return self._carry(data)
            data()
        except Exception as problem:
            self._note_failure("streams of a process", problem)
            time.sleep(RETRY_S)
        return 0

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:  # out of descriptors: who is refused at once keeps the streams that it has
            self._selector.unregister(self._listener)
            self._listener.close()
            raise
        with peer:
            peer.settimeout(1.0)
            asked = json.loads(peer.recv(4096))
            name = f"{_name(asked.get('rank'))}.{int(asked.get('attempt') or 0)}.{int(asked['pid'])}"
            children: list[int] = []
            try:
                for index in range(2):
                    if asked["streams"][index]:
                        children.append(self._open(index, name))
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", children))
                peer.sendmsg([b"ok"], [rights])
            finally:  # a stream that nobody holds the other end of ends by itself
                for child in children:
                    os.close(child)

    def _open(self, index: int, name: str) -> int:
        """Return the end for the process; ours is carried from now on."""
        target = self._targets[index]
        log = BoundedLog(self._folder, f"logs/{name}.{('stdout', 'stderr')[index]}.log", self._limit)
        terminal = os.isatty(target)
        source, child = pty.openpty() if terminal else os.pipe()
        with contextlib.ExitStack() as failed:
            failed.callback(os.close, source)
            failed.callback(os.close, child)
            if terminal:
                tty.setraw(child)  # bytes pass as they are: the real terminal does the line endings
                _copy_size(target, child)
            stream = _Stream(source, target, log, terminal)
            self._selector.register(source, selectors.EVENT_READ, stream)
            self._streams[source] = stream
            failed.pop_all()
        return child

    def _carry(self, stream: _Stream) -> int:
        """Carry what is there; return how many bytes that was."""
        try:
            data = os.read(stream.source, CHUNK)
        except OSError as problem:
            if not (
                stream.terminal and problem.errno == errno.EIO
            ):  # so a terminal says that it has no writer
                raise
            data = b""
        if not data:
            self._end(stream)
            return 0
        stream.log.write(data)
        with self._turn(stream.terminal, data):
            self._write(stream, data)
        return len(data)

    def end_line(self) -> None:
        """Begin a new line where a line of ours is to follow on the terminal and the job has left one unfinished."""
        target = self._targets[1]
        if self._open_line and os.isatty(target):
            with self._turn(True, b"\n"), contextlib.suppress(OSError):
                os.write(target, b"\n")

    def _turn(self, terminal: bool, data: bytes) -> contextlib.AbstractContextManager[None]:
        """Take notice of what is written next; on a terminal nothing of ours comes in between."""
        if not terminal:
            return contextlib.nullcontext()
        self._open_line = not data.endswith(b"\n")
        return self.screen.turn(data) if self.screen is not None else contextlib.nullcontext()

    def _write(self, stream: _Stream, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(stream.target, view) :]
            except BlockingIOError:
                select.select([], [stream.target], [], 1.0)
            except BrokenPipeError:  # our reader is gone: the next write of the rank fails, as under torchrun
                self._end(stream)
                break
            except OSError as problem:  # a full disk, a terminal that was closed: the job and its log go on
                self._note_failure("output for the terminal", problem)
                break

    def _note_failure(self, what: str, problem: Exception) -> None:
        why = getattr(problem, "strerror", None) or f"{type(problem).__name__}: {problem}"
        self._note(f"{what}: {why}")

    def _note(self, text: str) -> None:
        if text not in self.lost and len(self.lost) < MOST_LOST:
            self.lost.append(text)

    def _end(self, stream: _Stream) -> None:
        if self._streams.pop(stream.source, None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stream.source)
        stream.log.close()
        if stream.log.lost is not None:
            self._note(stream.log.lost)
        os.close(stream.source)


def _duplicate(descriptor: int, opened: contextlib.ExitStack) -> int:
    copy = os.dup(descriptor)
    opened.callback(os.close, copy)
    return copy


def _name(rank: object) -> str:
    """Return the beginning of a log's name; some launchers tell a rank no number."""
    if rank is None or rank == "command":
        return str(rank or "rank")
    return f"rank-{int(str(rank))}"


def _copy_size(terminal: int, pseudo: int) -> None:
    size = fcntl.ioctl(terminal, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    fcntl.ioctl(pseudo, termios.TIOCSWINSZ, size)
