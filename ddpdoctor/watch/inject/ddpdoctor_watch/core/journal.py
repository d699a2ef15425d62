"""The file that a process writes its events to: unbuffered, so what was written survives SIGKILL.

Descriptors are kept open (a process that ran out of them could otherwise not say so), out of the way of the
numbers that the program sees, and are looked at before each write: a program that closes all descriptors
and opens others must never find our lines in its files.
"""

from __future__ import annotations

import faulthandler
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from . import writer

try:
    from _json import encode_basestring_ascii as _quote
except ImportError:  # Interpreters without the accelerator.
    from json.encoder import py_encode_basestring_ascii as _quote

HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""Where our own code lies, to tell its frames from the program's."""

LIMITS = {
    "exception": 200,
    "exit-call": 50,
    "child-exit": 20_000,
    "kill": 5_000,
    "milestone": 2_000,
    "role": 200,
    "init": 200,
    "ddp": 20,
    "trouble": 20,
    "setting": 100,
    "loader": 2_000,
    "recorder": 20,
    "tensors": 40,
    "step": 2_000,
    "compared": 64,
    "epoch": 2_000,
    "batch": 500,
    "file": 1_500,
    "abstained": 50,
    "nonfinite": 400,
    "finite": 400,
    "losses": 80,
    "scale": 500,
    "evaluation": 60,
    "companion": 100,
    "pace": 100,
    "times": 400,
    "search": 100,
    "unenclosed": 20,
    "unfollowed": 40,
    "data-parallel": 10,
    "gathered": 10,
    "load": 20,
    "loaded": 20,
    "resume": 10,
    "resumed": 10,
    "seed": 20,
    "signature": 4_000,
    "site": 4_000,
    "group": 1_000,
    "work": 2_000,
}
"""Events per process and kind: threads may die by the thousand; 50 MB of evidence an hour is the whole budget."""

HEAD, TAIL = 12_000, 4_000
"""Characters of a message that are kept: errors of C++ carry stacks of 10 kB, and end with the reason."""
KEPT_FORKS = 100
"""Forked children of one process whose files stay: loaders fork anew each epoch, for days. Of the later ones only those
stay that did not end well."""

KEPT_FILES = 2000
"""Files in the folder of processes, two for each, from which on a helper that ends well takes its own away: workers
that are spawned anew each epoch, or a script that starts a Python program each step, make thousands an hour."""

_VARARGS = 4
"""Flag of code that takes any number of arguments (inspect.CO_VARARGS)."""
_DEPTH = 12
"""Nesting of an event; the deepest, a group's member's chain, needs 8."""


class _Journal:
    """State of this process; replaced after a fork."""

    def __init__(self, run: str) -> None:
        self.folder = os.path.join(run, "processes")
        self.descriptor = -1
        self.fault_descriptor = -1
        self.identity = (0, 0)
        self.torn = False
        self.counts: dict[str, int] = {}
        self.forks = 0
        self.disposable = False
        self.helper = False


_journal: _Journal | None = None


def read_ticks(pid: int | str) -> tuple[int, int]:
    """Read when a process started and who its parent is.

    Returns:
        The start in clock ticks since boot and the parent's id; zeros where /proc does not say.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
        # man 5 proc: the name, field 2, may hold anything; starttime is field 22, ppid field 4.
        fields = text[text.rindex(b")") + 2 :].split()
        return int(fields[19]), int(fields[1])
    except (OSError, ValueError, IndexError):
        return 0, 0


def open_journal(run: str) -> bool:
    """Open the files of this process and let Python's fault handler write to one of them.

    Args:
        run: The run directory.

    Returns:
        False where they cannot be written; nothing is watched then.
    """
    global _journal
    journal = _Journal(run)
    try:
        if not os.path.isdir(journal.folder):
            os.mkdir(journal.folder)
    except OSError:
        pass  # Made by another process meanwhile, or the next line fails.
    try:
        _open(journal)
    except OSError:
        return False
    _journal = journal
    # Somebody who asked for the fault handler keeps it where he wants it.
    if not faulthandler.is_enabled():
        try:
            journal.fault_descriptor = _lift(_create(_path(journal, "fault")))
            faulthandler.enable(file=journal.fault_descriptor, all_threads=True)
        except (OSError, ValueError, RuntimeError) as error:
            trouble("faulthandler", error)
    return True


def reopen_after_fork() -> None:
    """Give a forked child files of its own; on failure it writes nothing."""
    journal = _journal
    if journal is None:
        return
    journal.disposable = journal.forks > KEPT_FORKS
    journal.forks = 0
    journal.counts = {}
    journal.torn = False
    kept = journal.descriptor
    try:
        _open(journal, kept if _is_ours(journal) else -1)
    except OSError:
        journal.descriptor = -1  # Never the parent's.
    if journal.fault_descriptor >= 0:
        # The fault handler knows the number: the child's file takes its place.
        try:
            descriptor = _create(_path(journal, "fault"))
        except OSError:
            descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(descriptor, journal.fault_descriptor, inheritable=False)
        os.close(descriptor)


def pause_faults() -> bool:
    """Take Python's fault handler away for a moment; return whether it is ours."""
    ours = _journal is not None and _journal.fault_descriptor >= 0 and faulthandler.is_enabled()
    if ours:
        faulthandler.disable()
    return ours


def resume_faults() -> None:
    """Put it back, before handlers that were installed meanwhile."""
    if _journal is not None:
        try:
            faulthandler.enable(file=_journal.fault_descriptor, all_threads=True)
        except (OSError, ValueError, RuntimeError) as error:
            trouble("faulthandler", error)


def count_fork() -> None:
    """Count a fork that is about to happen."""
    if _journal is not None:
        _journal.forks += 1


def note_helper() -> None:
    """Take this process, neither rank nor launcher, for a helper if a watched one has started it."""
    journal = _journal
    if journal is not None:
        parent = os.getppid()
        name = f"{parent}-{read_ticks(parent)[0]}.jsonl"
        journal.helper = os.path.exists(os.path.join(journal.folder, name))


def dispose(*telling: str) -> None:
    """Remove the files of a child that ends well, where there are enough of its kind.

    Args:
        telling: Events that make it worth keeping, besides exceptions, troubles and the making of a process group.
    """
    journal = _journal
    if journal is None or journal.counts.keys() & {"exception", "trouble", "init", *telling}:
        return
    if not journal.disposable and not _is_one_of_many(journal):
        return
    for suffix in ("jsonl", "fault", "ring"):
        path = _path(journal, suffix)
        if os.path.exists(path):
            os.unlink(path)


def _is_one_of_many(journal: _Journal) -> bool:
    if not journal.helper or "child-exit" in journal.counts:
        return False
    return len(os.listdir(journal.folder)) > KEPT_FILES


def joined() -> bool:
    """Tell whether this process has made a process group."""
    return _journal is not None and "init" in _journal.counts


def folder() -> str:
    """Give the folder of the processes' files, empty where nothing is watched."""
    return _journal.folder if _journal is not None else ""


def _write(event: str, fields: Mapping[str, object]) -> int:
    """Append an event; what cannot be written is lost without a word.

    Args:
        event: Its name.
        fields: What it says: JSON values.

    Returns:
        Bytes of its line; 0 where there is none.
    """
    journal = _journal
    if journal is None:
        return 0
    count = journal.counts[event] = journal.counts.get(event, 0) + 1
    limit = LIMITS.get(event)
    if limit is not None and count > limit:
        if count == limit + 1 and event != "trouble":
            write(
                "trouble",
                {"where": "journal", "text": f"more than {limit} events {event}: the rest is dropped"},
            )
        return 0
    try:
        head = f'{{"event":{_quote(event)},"wall_ns":{time.time_ns()},"mono_ns":{time.monotonic_ns()}'
        body = "".join([f",{_quote(name)}:{_encode(value)}" for name, value in fields.items()])
        line = f"{head}{body}}}\n".encode("ascii")
        _append(journal, line)
    except Exception as error:  # Where failures are written down, one may be the failure.
        if not _is_own(error):
            raise
        return 0
    return len(line)


write: writer.Write = _write


def cut(text: str) -> str:
    """Bound a text, keeping its beginning and its end."""
    left_out = len(text) - HEAD - TAIL
    if left_out <= 0:
        return text
    return f"{text[:HEAD]}\n[{left_out} characters omitted]\n{text[-TAIL:]}"


def trouble(where: str, error: object) -> None:
    """Write down a failure of ours."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    write("trouble", {"where": where, "text": text[:2000]})


def failed(where: str, error: BaseException) -> None:
    """Deal with an exception that reached the edge of our code: also of torch's or the program's, which we have called.

    Args:
        where: Which part of ours.
        error: The exception, being handled.

    Raises:
        BaseException: The same, where it is not ours: a signal handler of the program may raise in the middle
            of our code (the elastic agent's does, to stop), and what it raises belongs to the program.
    """
    if not _is_own(error):
        raise error
    trouble(where, error)


def _is_own(error: BaseException) -> bool:
    """Whether an exception came about because we ran; not one of a function that Python called by itself meanwhile."""
    if not isinstance(error, Exception):
        return False
    traceback = error.__traceback__
    while traceback is not None:
        if _is_interruption(traceback.tb_frame):
            return False
        traceback = traceback.tb_next
    return True


def _is_interruption(frame: FrameType) -> bool:
    """Whether a signal handler or a trace function runs in a frame: they are given the frame that they interrupt."""
    code = frame.f_code
    # Not its other variables: functions of ours keep the frame that called them in one.
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _VARARGS)
    if not count or frame.f_back is None:
        return False
    seen = frame.f_locals
    given = [seen.get(name) for name in code.co_varnames[:count]]
    return any(
        each is frame.f_back or (type(each) is tuple and any(one is frame.f_back for one in each))
        for each in given
    )


def _path(journal: _Journal, suffix: str) -> str:
    return os.path.join(journal.folder, f"{os.getpid()}-{read_ticks('self')[0]}.{suffix}")


def _create(path: str) -> int:
    # Private: what it holds is scrubbed of secrets only later.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _open(journal: _Journal, number: int = -1) -> None:
    descriptor = _create(_path(journal, "jsonl"))
    if number < 0:
        descriptor = _lift(descriptor)
    else:
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)
        descriptor = number
    journal.descriptor = descriptor
    status = os.fstat(descriptor)
    journal.identity = (status.st_dev, status.st_ino)


def _lift(descriptor: int) -> int:
    """Move a descriptor to a high number, so that the program's first file still gets number 3."""
    # 1024 is the usual limit; above it, the kernel's table would grow for our sake.
    top = min(os.sysconf("SC_OPEN_MAX"), 1024)
    for number in range(top - 1, max(top - 40, descriptor), -1):
        try:
            os.fstat(number)
        except OSError:
            try:
                os.dup2(descriptor, number, inheritable=False)
            except OSError:
                break
            os.close(descriptor)
            return number
    return descriptor


def _is_ours(journal: _Journal) -> bool:
    try:
        status = os.fstat(journal.descriptor)
    except OSError as error:
        if not _is_own(error):
            raise
        return False
    return (status.st_dev, status.st_ino) == journal.identity


def _append(journal: _Journal, line: bytes) -> None:
    try:
        if not _is_ours(journal):
            _open(journal)
        if journal.torn:
            line = b"\n" + line
        # One write: lines of several threads never mix.
        written = os.write(journal.descriptor, line)
        journal.torn = written < len(line)
    except OSError as error:
        # Disk full, limit of file size, directory gone: the job goes on.
        if not _is_own(error):
            raise  # A program's handler that raises TimeoutError.


def encode(value: object) -> str:
    """Write a value as JSON."""
    return _encode(value)


def _encode(value: object, depth: int = 0) -> str:
    # Not `json`: importing it takes longer than all else that happens at start-up.
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0 else "null"
    if depth < _DEPTH:
        if isinstance(value, dict):
            return (
                "{" + ",".join([f"{_quote(str(k))}:{_encode(v, depth + 1)}" for k, v in value.items()]) + "}"
            )
        if isinstance(value, (list, tuple)):
            return "[" + ",".join([_encode(item, depth + 1) for item in value]) + "]"
    return _quote(str.__str__(value) if isinstance(value, str) else str(value))
