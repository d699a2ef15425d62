"""What stdout can show: colours, letters beyond ASCII, columns; and printing there."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from ddpdoctor.errors import OutputError
from ddpdoctor.text.characters import neutralise
from ddpdoctor.text.paper import Paper

MAX_WIDTH = 120
"""Lines longer than this are hard to read on any terminal; the text is laid out for 80 to 120 columns."""
MIN_WIDTH = 40


@dataclass(frozen=True)
class Display:
    """How text on a stream should look."""

    color: bool
    ascii: bool
    width: int

    @classmethod
    def of(cls, stream: TextIO | None, *, no_color: bool = False) -> Display:
        """Find out what ``stream`` can show; None is a closed one."""
        terminal = stream is not None and stream.isatty() and _is_shown(stream)
        plain = no_color or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        columns = shutil.get_terminal_size((80, 24)).columns if terminal else _columns_asked()
        return cls(
            color=terminal and not plain,
            ascii=stream is None or not is_unicode(stream),
            width=max(MIN_WIDTH, min(MAX_WIDTH, columns)),
        )

    def paper(self) -> Paper:
        """Return empty paper for this display."""
        return Paper(width=self.width, color=self.color, ascii=self.ascii)


def _is_shown(stream: TextIO) -> bool:
    """Whether a terminal is one that somebody looks at.

    Open MPI gives its tasks terminals of its own and writes what comes to where its own output goes.
    """
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return True
    from ddpdoctor.gather.process_state import list_ancestors, read_command

    number = 2 if stream is sys.stderr else 1
    for pid in list_ancestors():
        name = os.path.basename(read_command(pid)[0]) if read_command(pid) else ""
        if name.partition(".")[0] in _MPIRUN:
            with contextlib.suppress(OSError):
                return os.readlink(f"/proc/{pid}/fd/{number}").startswith(("/dev/pts/", "/dev/tty"))
    return False


_MPIRUN = ("mpirun", "mpiexec", "orterun", "prterun")


def _columns_asked() -> int:
    """Without a terminal the width is 80 unless COLUMNS says otherwise."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else 80


def is_unicode(stream: TextIO) -> bool:
    """Whether what is written to ``stream`` may be more than ASCII."""
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("_", "-")
    return encoding.startswith("utf")


def print_text(text: str) -> None:
    """Print to stdout; a reader that went away (``| head``) is no error.

    Raises:
        OutputError: stdout is closed or full.
    """
    if sys.stdout is None:
        raise OutputError("nothing could be printed: stdout is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()  # a full disk is noticed here and not at the interpreter's own exit
    except BrokenPipeError:
        silence(sys.stdout)
    except (OSError, ValueError) as problem:
        silence(sys.stdout)
        reason = getattr(problem, "strerror", None) or str(problem)
        raise OutputError(f"nothing could be printed: stdout: {reason}") from problem


@contextlib.contextmanager
def reserved_stdout() -> Iterator[None]:
    """Let what plugins print while they are loaded, look, judge or render go to stderr: stdout may be JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def complain(text: str) -> None:
    """Print a message on stderr, made harmless; where that is closed too, the exit code is all that is left."""
    if sys.stderr is None:
        return
    shown = "\n".join(neutralise(line) for line in _hide(text).splitlines())
    with contextlib.suppress(OSError, ValueError):
        print(shown, file=sys.stderr)


def _hide(text: str) -> str:
    """Return a message without secrets, such as a path or an address that was given; as it is where we fail at that."""
    try:
        from ddpdoctor.gather.scrub import hide_secrets

        return hide_secrets(text)
    except Exception:  # a process without memory or descriptors still says what is wrong
        return text


def silence(stream: TextIO) -> None:
    """Point a standard stream to nowhere, so that the interpreter's own flush at exit does not fail again."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stream without a descriptor has nothing to flush to
        pass
