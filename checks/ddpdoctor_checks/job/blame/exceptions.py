"""What processes raised: the exception that ended each, and whose fault it can be."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import ExceptionRecord
from ddpdoctor.evidence.texts.matching import (
    CAUSE,
    CONSEQUENCE,
    TextEntry,
    choose_entry,
    find_entry,
    match_text,
)
from ddpdoctor_checks.common.frames import cut_at_start, read_traceback, stands_in, user_line
from ddpdoctor_checks.job.blame.conditions import (
    ABRT,
    BUS,
    KILL,
    OF_OTHERS,
    SEGV,
    Context,
    settle_exception,
    settle_text,
)
from ddpdoctor_checks.job.blame.failures import (
    OWN,
    WAITING,
    Failure,
    Level,
    choose_level,
    describe_exception,
    short_type,
)
from ddpdoctor_checks.job.blame.views import View

MAIN = ("uncaught", "error-file", "log", "handled", "caught")
"""Kinds of exceptions of the thread that trains."""
_STARVED = frozenset({"Empty", "Full", "BrokenBarrierError"})
"""What a thread raises that waited in vain for another one (queue, threading)."""
_WAITS = ("/queue.py", "/threading.py", "multiprocessing/queues.py", "multiprocessing/connection.py",
          "concurrent/futures/", "asyncio/")  # fmt: skip
"""Where it waits."""
_CLOSED = frozenset({"ConnectionResetError", "BrokenPipeError", "ConnectionRefusedError", "EOFError"})
"""What a rank raises where the process that it reads from is gone."""
_DEADLY = (ABRT, BUS, KILL, SEGV)
_REMOTE = ("RemoteTraceback", "_RemoteTraceback")
"""Exceptions of multiprocessing.pool, and of concurrent.futures and joblib."""
_WORKER_PIDS = re.compile(r"DataLoader worker \(pid(?:\(s\))? (\d[\d, ]{0,200})\)")
_SNIPPET = re.compile(r"^\[Rank (?P<ranks>\d[\d,]{0,400}) Error Snippet\]:\n", re.MULTILINE)
"""Before the traceback of each rank in Ray Train's error (ray/train/v2, worker_group/poll.py)."""
_LOST = re.compile(
    r"(?i)^(?:\[Errno \d{1,3}\] )?"
    r"(?:connection reset by peer|connection refused|broken pipe|socket closed|connection closed by peer)"
)
"""The whole message of a call of torch.distributed whose peer, or whose store, is gone."""
_BROKEN = re.compile(
    r"(?i)^(?:\[Errno \d{1,3}\] )?(?:connection reset by peer|broken pipe|failed to recv, got 0 bytes)"
)
"""The whole message of a call whose connection had been there, and broke."""
_LAUNCHERS = ("torch/distributed/launch.py", "accelerate/commands/", "deepspeed/launcher/")
"""Launchers that raise CalledProcessError where a rank ended with a status."""
_ENDING = re.compile(r"(^|\.)(KeyboardInterrupt|SignalException|ChildFailedError)$")
"""Exceptions of processes that were told to end, or that report others."""


@dataclass(frozen=True, slots=True)
class _Told:
    """One exception, read."""

    record: ExceptionRecord
    type: str
    message: str
    frames: tuple[Frame, ...]
    entry: TextEntry | None
    groups: dict[str, str]
    ranks: tuple[int, ...] = ()
    """Ranks of which the exception says that they raised it."""

    @property
    def complains(self) -> bool:
        if (
            self.entry is None
            and stands_in(self.frames[:1], "torch/distributed/")
            and _LOST.match(self.message)
        ):
            return True
        if short_type(self.type) == "CalledProcessError" and any(
            stands_in(self.frames, part) for part in _LAUNCHERS
        ):
            return True
        return bool(_ENDING.search(self.type)) or (
            self.entry is not None and (self.entry.role == CONSEQUENCE or self.entry.code in WAITING)
        )


def _read(record: ExceptionRecord) -> _Told:
    """Read an exception; of several ranks that one quotes, the first that does not complain of another."""
    parts = _SNIPPET.split(record.message)
    told = [
        replace(_read_one(record, text), ranks=tuple(int(rank) for rank in ranks.split(",") if rank))
        for ranks, text in zip(parts[1::2], parts[2::2], strict=True)
    ]
    return next((each for each in told if not each.complains), told[0] if told else _read_one(record))


def _read_one(record: ExceptionRecord, text: str | None = None) -> _Told:
    kind, message, frames = record.type, record.message if text is None else text, record.frames
    if "Traceback (most recent call last)" in message:
        inner, inner_kind, inner_message = read_traceback(message)
        if inner_kind is not None:
            kind, message = inner_kind, inner_message
            frames = (*inner, *frames)
    if record.parent_frames:
        frames = (*frames, *record.parent_frames)
    hits = match_text(f"{short_type(kind)}: {message}")
    entry = choose_entry(hits)
    groups = {name: text for _, found in hits for name, text in found.items()}
    if entry is not None:
        groups.update(dict(hits)[entry.id])
    return _Told(record, kind, message, frames, entry, groups)


def judge_exceptions(view: View, context: Context) -> Failure | None:
    """Choose the exception that ended a process: its own before a complaint, the main thread's before others'."""
    main = [e for e in view.exceptions if e.kind in MAIN]
    inside = [e for worker in view.workers for e in worker.exceptions]
    inside += [e for e in view.exceptions if e.kind == "worker"]
    threads = [e for e in view.exceptions if e.kind == "thread"]
    process = view.process
    if not main and process is not None and not (process.exit_code or process.signal):
        return None  # a thread or a worker died of it, and the rank lived on
    failures = [_judge_exception(view, record, context) for record in (*main, *inside)]
    beside = [_judge_exception(view, record, context) for record in threads]
    own = [each for each in failures if each.level in OWN]
    chosen = own[0] if own else failures[0] if failures else None
    if len(own) > 1:
        _add_worker(own)
    first = next((each for each in beside if each.level in OWN), beside[0] if beside else None)
    return _weigh_thread(chosen, first)


def _weigh_thread(main: Failure | None, thread: Failure | None) -> Failure | None:
    """Choose between what ended the main thread and what ended another one: a job can outlive that for hours."""
    if thread is None:
        return main
    thread.sure = "medium"
    if main is None:
        return thread
    if main.level == Level.ENDED or (main.at is not None and thread.at is not None and thread.at > main.at):
        return main
    if main.level in OWN:
        if thread.level in OWN and _is_starved(main):
            return thread
        main.before = thread
        return main
    if thread.level in OWN:
        # It may be why peers went away, but any failure of their own goes before it.
        thread.level, main.before = Level.SOFT, thread
    return main


def _is_starved(failure: Failure) -> bool:
    """Whether the main thread waited in vain for what another one should have given."""
    name = short_type(failure.type or "")
    if name != "TimeoutError":
        return name in _STARVED
    own = (
        bool(failure.frames) and user_line(failure.frames[:1]) is not None
    )  # raised after a wait with a limit
    return own or any(stands_in(failure.frames, part) for part in _WAITS)


def _add_worker(own: Sequence[Failure]) -> None:
    """A rank quotes its worker: where the worker's own record is there too, its stack is the inner part."""
    first = own[0]
    for each in own[1:]:
        inner = each.exception is not None and each.exception.kind == "worker"
        if inner and each.type is not None and short_type(each.type) == short_type(first.type or ""):
            if each.line is not None and each.line not in first.frames:
                first.frames = (*each.frames, *first.frames)
            first.note, first.message, first.words = each.note, each.message, each.words
            return


def _names_cause(told: _Told, root: _Told) -> bool:
    """Whether an exception says what is wrong, and was raised from the complaint that showed it.

    Torch raises "The connection to the C10d store has failed" from the time-out of the socket. Where a connection broke
    that had been there, it was reached, and nothing is wrong with its name.
    """
    if _BROKEN.match(root.message):
        return False
    chain = told.record.chain
    known = told.entry is not None and told.entry.role == CAUSE
    return known and not told.complains and bool(chain) and chain[0].link == "cause"


def _judge_exception(view: View, record: ExceptionRecord, context: Context) -> Failure:
    told = _join_remote([_read(each) for each in (record, *record.chain)])
    if told[0].entry is None and _lost_worker(told[0], view) is not None:
        told[0] = replace(told[0], entry=find_entry("loader-gone"))
    top, root = told[0], told[-1]
    level, shown = Level.EXCEPTION, top
    if root.complains and not _names_cause(top, root):
        level, shown = Level.COMPLAINT, root
    elif top.complains:
        shown = next(each for each in told if not each.complains)
        # Raised while that one was handled: it may be what went wrong, or an everyday KeyError before it.
        level = Level.EXCEPTION if top.record.chain[0].link == "cause" else Level.SOFT
    code: str | None = None
    entry, groups = shown.entry, shown.groups
    if level != Level.COMPLAINT:
        known = next((each for each in told if each.entry is not None and each.entry.role == CAUSE), None)
        if known is not None:
            entry, groups = known.entry, known.groups
        code = settle_exception(view, shown.type, shown.frames, entry, groups, context)
        level = choose_level(code, level)
    elif entry is not None:
        code = settle_text(view, entry, groups, context)
        level = choose_level(code, Level.EXCEPTION)
    origin = _find_origin(told) if shown is top and level != Level.COMPLAINT else shown
    if origin is not shown and code == "ERR001":
        code = settle_exception(view, origin.type, origin.frames, entry, groups, context)
    if code is None and _ENDING.search(shown.type) and short_type(shown.type) != "ChildFailedError":
        level = Level.ENDED
    failure = Failure(
        view,
        level,
        code,
        describe_exception(origin.type, origin.message),
        exception=record,
        type=origin.type,
        message=origin.message,
        frames=shown.frames if origin is shown else (*origin.frames, *shown.frames),
        entry=entry,
        groups=groups,
        note=_note(record),
        told=shown.ranks,
        outer="" if origin is shown else describe_exception(shown.type, shown.message),
        outer_line=None if origin is shown else user_line(shown.frames),
    )
    if record.at is not None:
        failure.at = context.clock.seconds(view.node, record.at)
        failure.coarse = record.at.is_coarse
    _add_crash(failure, top)
    lost = entry is not None and entry.id == "loader-gone"  # of which nothing shows why the worker ended
    unknown = code == "ERR001" and (lost or short_type(origin.type) in OF_OTHERS)
    if unknown or (level == Level.SOFT and shown is not top):
        failure.sure = "medium"
    return failure


def _find_origin(told: Sequence[_Told]) -> _Told:
    """Return the exception of a chain that has the line to look at: where it began in the user's own files.

    What was raised ``from`` another wraps it, and so does a ``raise`` in its handler. Of an error that a handler ran
    into, the handler's own line is to be looked at. Where the first one is a library's affair alone, the one that the
    library made of it says more.
    """
    origin = told[0]
    for outer, inner in itertools.pairwise(told):
        if inner.complains or (inner.record.link == "context" and not _is_raised_by_hand(outer)):
            break
        if user_line(inner.frames) is not None:
            origin = inner
    return origin


def _is_raised_by_hand(told: _Told) -> bool:
    first = told.frames[0] if told.frames else None
    return first is not None and first.is_user and (first.source or "").startswith("raise ")


def _join_remote(told: list[_Told]) -> list[_Told]:
    """Give an exception that a process of a pool sent back the stack that stands before it as text."""
    for number in range(len(told) - 1, 0, -1):
        if short_type(told[number].record.type) in _REMOTE and told[number].frames:
            inner = told.pop(number)
            outer = told[number - 1]
            told[number - 1] = replace(outer, frames=(*inner.frames, *outer.frames))
    return told


def _lost_worker(told: _Told, view: View) -> View | None:
    """Return the loader worker whose death closed the connection on which a rank waited for it."""
    if short_type(told.type) not in _CLOSED or not stands_in(told.frames, "multiprocessing/"):
        return None
    return next((w for w in view.workers if w.process is not None and w.process.signal in _DEADLY), None)


def _add_crash(failure: Failure, top: _Told) -> None:
    """A rank says that a loader worker crashed; the worker's own dump has the line."""
    named = _WORKER_PIDS.search(failure.message)
    if named is not None:
        pids = {int(part) for part in named[1].replace(",", " ").split()}
        gone = sorted((w for w in failure.view.workers if w.pid in pids), key=lambda w: w.crash is None)
        failure.worker = gone[0] if gone else None
    else:
        failure.worker = _lost_worker(top, failure.view)
    if failure.worker is None:
        return
    crash, process = failure.worker.crash, failure.worker.process
    inner = (
        crash.frames
        if crash is not None and crash.frames
        else process.exit_call
        if process is not None
        else ()
    )
    if inner:
        failure.frames = (*cut_at_start(inner), *failure.frames)
        failure.note = "in a DataLoader worker"


def _note(record: ExceptionRecord) -> str:
    if record.kind == "worker" or (record.worker is not None):
        return (
            f"in DataLoader worker {record.worker}" if record.worker is not None else "in a DataLoader worker"
        )
    if record.kind == "thread":
        return f"in thread {record.thread}" if record.thread else "in another thread"
    if "in DataLoader worker process" in record.message[:200]:
        found = re.search(r"DataLoader worker process (\d{1,5})", record.message[:200])
        return f"in DataLoader worker {found[1]}" if found else ""
    if record.parent_frames:
        return "in a pool process"
    if record.kind == "handled":
        return "handled by an exit"
    return ""
