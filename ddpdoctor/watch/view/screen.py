"""A few lines at the bottom of the job's terminal that its output scrolls above.

The terminal's scrolling region is made smaller by the lines (DECSTBM, as apt does for its progress), and each drawing
saves and restores the cursor (DECSC, DECRC). So the cursor stays where the job left it, in the middle of a line too,
and what others write to the terminal past us (torchrun's log, a shell's echo) lands where it belongs.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import threading
from collections.abc import Iterator, Sequence

SAVE, RESTORE = b"\x1b7", b"\x1b8"
WHOLE = b"\x1b[r"
"""The scrolling region is the whole terminal; the cursor goes to its first place."""
INDEX = b"\x1bD"
"""One line down in the same column; at the bottom the terminal scrolls."""
CANCEL = b"\x18"
"""Ends an escape sequence that was begun (ECMA-48, CAN)."""
MOST_PENDING = 256
"""Bytes of an unfinished sequence that are remembered; of longer ones (titles, pictures) the beginning is enough."""
INCOMPLETE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[ -/]*|[\]PX^_][^\x07\x1b]*)\Z", re.S)
"""An escape sequence, control sequence or string (ECMA-48) whose end has not come."""
DISTURBS = re.compile(rb"\x1b(?:c|\[!p|\[(?:(\d{0,5};?\d{1,5})|0?;?)r|\[\?(?:47|1047|1049)(?:(h)|l))")
"""Reset, soft reset, a scrolling region of the job's own (1) or none, and another screen (2) or back."""
SAVES = re.compile(rb"\x1b(?:7|\[s|(8|\[u))")
"""The cursor's place is saved, or restored (1). There is one store for it, the job's and ours."""
AFTER_US = 'read _; printf "\\0337\\033[r\\0338\\033[J"'
"""What a shell does when we are gone without a word: the region is the whole terminal again, and below is nothing."""


class Boundary:
    """Whether what was written so far ends between two characters and outside of an escape sequence."""

    def __init__(self) -> None:
        self._pending = b""
        self._saved = False
        self.disturbed = False
        """The job has changed what we rely on since this was last set to False."""
        self.elsewhere = False
        """The job shows another screen of the terminal (an editor, a pager), or keeps lines at the bottom itself."""

    @property
    def clean(self) -> bool:
        """Whether something else may be written now."""
        return not self._pending and not self._saved

    def pass_on(self, data: bytes) -> None:
        """Take notice of what is written next."""
        if len(data) < 4 or b"\x1b" in data or self._pending[:1] == b"\x1b":
            data = self._pending + data
        if b"\x1b" in data:
            for found in DISTURBS.finditer(data):
                self.disturbed = True
                self.elsewhere = found.lastindex is not None
            for found in SAVES.finditer(data):
                self._saved = found[1] is None
            last = data.rfind(b"\x1b")
            if INCOMPLETE.match(data, last):
                rest = data[last:]
                self._pending = rest if len(rest) <= MOST_PENDING else rest[:2]
                return
        self._pending = _cut_character(data[-4:])

    def switches(self, data: bytes) -> bool:
        """Whether these bytes take the place of our lines."""
        if b"\x1b" not in data and not self._pending:
            return False
        return any(found.lastindex is not None for found in DISTURBS.finditer(self._pending + data))


def _cut_character(tail: bytes) -> bytes:
    """Return the beginning of a UTF-8 character whose end has not come; empty where there is none."""
    for back in range(1, min(4, len(tail) + 1)):
        byte = tail[-back]
        if byte >= 0xC0:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return tail[-back:] if byte < 0xF8 and size > back else b""
        if byte < 0x80:
            return b""
    return b""


class Screen:
    """The terminal that the job writes to, and our lines at its bottom.

    Args:
        descriptor: the terminal; it stays open and is not closed here.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._boundary = Boundary()
        self._lock = threading.RLock()
        self._shown = 0
        """Lines of ours that are there."""
        self._size = (0, 0)
        self._paused = False
        self._closed = False
        self._guard: subprocess.Popen[bytes] | None = None

    def size(self) -> tuple[int, int]:
        """Return columns and lines of the terminal; 0 where it does not know them.

        Raises:
            OSError: it is gone.
        """
        size = os.get_terminal_size(self._descriptor)
        return size.columns, size.lines

    @contextlib.contextmanager
    def turn(self, data: bytes) -> Iterator[None]:
        """The job's turn to write ``data``: nothing of ours comes in between."""
        with self._lock:
            # Whatever fails here is ours: the job's output is carried on all the same.
            with contextlib.suppress(Exception):
                if self._shown and self._boundary.switches(data):
                    self._erase()
            yield
            with contextlib.suppress(Exception):
                self._boundary.pass_on(data)

    def draw(self, lines: Sequence[str], *, force: bool = False) -> bool:
        """Show these lines; none at all removes what is there.

        Args:
            lines: each on one line of at most the terminal's columns; may hold colours.
            force: also where the job has left a character or a sequence unfinished.

        Returns:
            False where this is not the time for it: the job is in the middle of something, or the terminal takes
            nothing at the moment.

        Raises:
            OSError: the terminal is gone.
        """
        with self._lock:
            if self._closed or self._paused or self._boundary.elsewhere:
                return True
            if not (force or self._boundary.clean) or not self._takes():
                return False
            if not lines or self._is_background():
                self._erase()
                return True
            self._watch_over()
            out = [b"" if self._boundary.clean else CANCEL]
            size = self.size()
            if size != self._size or len(lines) != self._shown or self._boundary.disturbed:
                out.append(self._make_room(size, len(lines)))
            top = size[1] - len(lines) + 1
            out.append(SAVE)
            out += [_place(top + place) + line.encode() for place, line in enumerate(lines)]
            out.append(b"\x1b[0m" + RESTORE)
            self._size, self._shown, self._boundary.disturbed = size, len(lines), False
            self._write(b"".join(out))
            return True

    def pause(self) -> None:
        """Remove the lines until `resume`: the terminal is somebody else's for a while."""
        with self._lock, contextlib.suppress(OSError):
            self._paused = True
            self._erase()

    def resume(self) -> None:
        """Lines may be drawn again."""
        with self._lock:
            self._paused = False

    def close(self) -> None:
        """Leave the terminal as it was."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(OSError):
                    self._erase()
                self._closed = True
            if self._guard is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._guard.kill()
                    self._guard.communicate()
                self._guard = None

    def _make_room(self, size: tuple[int, int], height: int) -> bytes:
        """Return what moves the job's part up until ``height`` lines are free below the cursor, and keeps it there."""
        rows = size[1]
        out = [SAVE, WHOLE, RESTORE]
        if self._shown and size != self._size:
            out.append(b"\x1b[J")  # the terminal has moved our lines to wherever it likes, below the cursor
        elif height < self._shown:
            out += [SAVE, *(_place(rows - row) for row in range(height, self._shown)), RESTORE]
        out += [INDEX * height, b"\x1b[%dA" % height, SAVE, b"\x1b[1;%dr" % (rows - height), RESTORE]
        return b"".join(out)

    def _erase(self) -> None:
        if not self._shown:
            return
        rows, height = self._size[1], self._shown
        self._shown = 0
        if self.size() != self._size:  # see `_make_room`
            self._write(SAVE + WHOLE + RESTORE + b"\x1b[J")
            return
        lines = b"".join(_place(rows - row) for row in range(height))
        self._write(SAVE + WHOLE + lines + RESTORE)

    def _write(self, data: bytes) -> None:
        """Write in one call, which the kernel keeps in one piece (n_tty takes a lock for it)."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _takes(self) -> bool:
        """Whether the terminal takes something at once; one that was stopped (Ctrl-S) does not."""
        return bool(select.select([], [self._descriptor], [], 0)[1])

    def _is_background(self) -> bool:
        """Whether the terminal belongs to another job of the shell now."""
        try:
            return os.tcgetpgrp(self._descriptor) != os.getpgrp()
        except OSError:  # it is not the terminal of our session: nobody shares it by jobs
            return False

    def _watch_over(self) -> None:
        """Start what puts the terminal right when we are killed; a signal of the terminal does not reach it."""
        if self._guard is not None:
            return
        with contextlib.suppress(OSError):
            self._guard = subprocess.Popen(
                ["sh", "-c", AFTER_US],
                stdin=subprocess.PIPE,
                stdout=self._descriptor,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )


def _place(row: int) -> bytes:
    """Return what goes to the beginning of a line and clears it."""
    return b"\x1b[%d;1H\x1b[0m\x1b[2K" % row
