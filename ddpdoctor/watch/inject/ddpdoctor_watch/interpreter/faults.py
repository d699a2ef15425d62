"""How a process ends: exceptions, calls that exit, and the elastic error file."""

from __future__ import annotations

import os
import sys

from ..core import describe, journal, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any

    from ddpdoctor.facts import events

_DDP_TEXTS = (
    "Expected to have finished reduction",
    "mark a variable ready",
    "marked as ready twice",
    "did not receive grad",
    "static_graph",
    "appears not to match sizes of the same param",
    "DDP expects same model across all ranks",
)
"""Texts in errors of DistributedDataParallel that speak of parameters (c10d/reducer.cpp and c10d/utils.hpp of
torch)."""

_PARSERS = ("argparse", "optparse", "runpy", "click", "typer")
"""Modules that end a program for wrong arguments, inside the handler of an exception that is their way to say so."""
_NO_DESCRIPTOR = "Too many open files"

explain: Callable[[str, BaseException], object] | None = None
"""Called with an error that names parameters, and its message; set once DistributedDataParallel is imported."""
_MOST_CAUGHT = 40
_caught: set[tuple[str, str, int]] = set()
"""Type and place of exceptions that the program made a text of."""

_noted: tuple[int, int] | None = None
"""The exception of the main thread that was written last: hooks call each other."""


def note_main(
    value: BaseException, traceback: TracebackType | None = None, *, fatal: bool, late: bool = False
) -> None:
    """Write the ``exception`` event of the main thread, once, and the elastic error file.

    Args:
        value: The exception.
        traceback: As the hook was given it.
        fatal: The interpreter ends because of it; else a program called the hook for an error of which it makes what
            it likes (kind ``printed``).
        late: Seen only when the interpreter ended, because the program's own hook took it.
    """
    global _noted
    if _noted == (id(value), id(value.__traceback__)):
        return
    describe.strip_own(value)
    _noted = (id(value), id(value.__traceback__))
    fields = _describe(value, traceback)
    if "where" not in fields:
        fields["kind"] = "uncaught" if fatal else "printed"
    if late:
        fields["late"] = True
    fields["main"] = getattr(sys.modules.get("__main__"), "__file__", None)
    journal.write("exception", fields)
    _note_parameters(value)
    if fatal and not late:
        _write_error_file(value)


def note_thread(name: str, value: BaseException | None) -> None:
    """Write the ``exception`` event of another thread that dies of one."""
    if value is None or isinstance(value, SystemExit):
        return  # threading lets a thread end by SystemExit without a word.
    describe.strip_own(value)
    fields = _describe(value)
    fields.setdefault("kind", "thread")
    fields["thread"] = name
    journal.write("exception", fields)
    _note_parameters(value)


def note_caught(value: BaseException | None, frame: FrameType | None) -> None:
    """Write the ``caught`` event of an exception that a program makes a text of.

    That alone says nothing: programs log what they have dealt with. But a library that runs a function of the program
    beside the main thread (Ray, a pool) reports its exceptions so, to a process that then ends with them.

    Args:
        value: The exception.
        frame: Of the caller.
    """
    if value is None or not isinstance(value, Exception) or value.__traceback__ is None:
        return
    while frame is not None and frame.f_globals.get("__name__") == "traceback":
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(journal.HERE):
        return  # Ours, for an error file.
    entry = value.__traceback__
    while entry.tb_next is not None:
        entry = entry.tb_next
    place = (type(value).__name__, entry.tb_frame.f_code.co_filename, entry.tb_lineno)
    if place in _caught or len(_caught) >= _MOST_CAUGHT:
        return
    _caught.add(place)
    parts: Any = _describe(value)
    fields: events.CaughtEvent = parts
    fields["caller"] = describe.list_stack(frame)[:1]
    journal.write("caught", fields)


def note_late() -> None:
    """Write the exception that ended the main thread where no hook of ours was asked."""
    value = getattr(sys, "last_value", None)
    if isinstance(value, BaseException) and not isinstance(value, SystemExit):
        note_main(value, getattr(sys, "last_traceback", None), fatal=True, late=True)


def note_process(value: BaseException) -> None:
    """Write what ended the function of a child of multiprocessing."""
    if not isinstance(value, SystemExit):
        note_main(value, fatal=True)
        return
    entry = value.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename.startswith(journal.HERE):
            return  # It came from sys.exit and is written already.
        entry = entry.tb_next
    _write_exit("raise", value.code, describe.list_traceback(value.__traceback__), None)


def note_exit(how: str, status: object, frame: FrameType, handled: BaseException | None) -> None:
    """Write the ``exit-call`` event.

    Args:
        how: ``sys.exit`` or ``os._exit``.
        status: As given to it.
        frame: Of the caller.
        handled: The exception in whose handler the call stands: often the true reason.
    """
    caller = str(frame.f_globals.get("__name__", ""))
    if caller.startswith("multiprocessing."):
        # How its children end. They run no exit functions, so this is their end.
        if how == "os._exit":
            journal.write("end", {"status": status if isinstance(status, int) else None})
    elif caller == "torch.multiprocessing.spawn":
        # Its wrapper of the user's function: the exception goes to the parent as text, then it exits with 1.
        if handled is not None:
            note_main(handled, fatal=True)
    else:
        if isinstance(handled, SystemExit) or caller.partition(".")[0] in _PARSERS:
            handled = None
        _write_exit(how, status, describe.list_stack(frame), handled)


def _write_exit(how: str, status: object, frames: list[list[object]], handled: BaseException | None) -> None:
    fields: events.ExitCall = {"how": how, "frames": frames}
    if status is None or isinstance(status, int):
        fields["status"] = int(status or 0)
    else:
        # Printed on stderr, and the status is 1.
        fields["status"] = 1
        try:
            fields["text"] = journal.cut(str(status))
        except Exception as error:
            fields["text"] = f"<its __str__ raised {type(error).__name__}>"
    if handled is not None:
        fields["exception"] = describe.describe(handled)
    journal.write("exit-call", fields)
    if handled is not None:
        _note_parameters(handled)


def _describe(value: BaseException, traceback: TracebackType | None = None) -> events.ExceptionEvent:
    try:
        parts: Any = describe.describe(value, traceback)
    except Exception as error:
        # Of memory, most likely: the name is worth having.
        return {
            "type": describe.name_type(type(value)),
            "message": "",
            "frames": [],
            "chain": [],
            "lost": str(error),
        }
    fields: events.ExceptionEvent = parts
    if "where" in fields:
        fields["kind"] = "worker"
    if _NO_DESCRIPTOR in str(fields["message"]):
        fields["open_files"] = process.read_open_files()
    return fields


def _note_parameters(value: BaseException) -> None:
    message = describe.read_message(value)
    if not any(text in message for text in _DDP_TEXTS):
        return
    if explain is None:
        return
    try:
        explain(message, value)
    except Exception as error:
        journal.trouble("ddp", error)


def _write_error_file(value: BaseException) -> None:
    """Do what torch's ``record`` would have done, had the script been decorated with it.

    The form is that of torch/distributed/elastic/multiprocessing/errors/error_handler.py. Its own function cannot be
    called here: it takes the traceback from the exception being handled, and none is in an exception hook.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or path == process.inherited_error_file or not isinstance(value, Exception):
        return
    if os.environ.get("DDPDOCTOR_RECORD") == "0":
        return
    try:
        text = _compose(value)
    except Exception:
        # The program's own handlers may raise in the middle of ours: DataLoader's does, once for a worker that died.
        try:
            text = _compose(value)
        except Exception as error:
            journal.trouble("error file", error)
            return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError:
        return  # Somebody wrote it, or nobody can.
    try:
        complete = os.write(descriptor, text) == len(text)
    except Exception as error:
        complete = False
        journal.trouble("error file", error)
    finally:
        os.close(descriptor)
    if not complete:
        # The agent fails on half a file, and gets along without one.
        os.unlink(path)


def _compose(value: BaseException) -> bytes:
    import json
    import time
    import traceback

    lines = traceback.format_exception(type(value), value, value.__traceback__)
    extra = {"py_callstack": journal.cut("".join(lines)), "timestamp": str(int(time.time()))}
    message = f"{type(value).__name__}: {describe.read_message(value)}"
    return json.dumps({"message": {"message": message, "extraInfo": extra}}).encode()
