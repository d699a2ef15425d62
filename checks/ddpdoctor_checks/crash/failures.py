"""How one process failed: what it said or how it died, whose fault that can be, and the code that this settles."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import ExceptionRecord, TextMatch
from ddpdoctor.evidence.texts import CAUSE, CONSEQUENCE, TextEntry, choose_entry, find_entry, match_text
from ddpdoctor_checks.crash.conditions import (
    ABRT,
    BUS,
    HUP,
    INT,
    KILL,
    SEGV,
    TERM,
    Context,
    settle_exception,
    settle_text,
)
from ddpdoctor_checks.crash.frames import read_traceback, user_line
from ddpdoctor_checks.crash.views import View
from ddpdoctor_checks.stage_evidence import name_signal

CRASHES = {
    "Segmentation fault": SEGV,
    "Bus error": BUS,
    "Aborted": ABRT,
    "Floating-point exception": 8,
    "Floating point exception": 8,
    "Illegal instruction": 4,
}
"""What faulthandler says of a signal (CPython, Modules/faulthandler.c), and the signal (signal(7))."""

FATAL = (4, 5, ABRT, BUS, 8, SEGV)
"""Signals that a process gets for what it did itself (signal(7): ILL, TRAP, ABRT, BUS, FPE, SEGV)."""

USAGE = 2
"""Status of a usage error (argparse, error())."""

SOFT = frozenset({"BKD002", "NET005", "NET007"})
"""Codes of texts that a lost peer can bring about too: any failure of its own kind goes before them."""
WAITING = frozenset({"NET006", "NET011", "NET015", "COL002", "COL005"})
"""Codes of texts that those say who waited for somebody else."""

_ENDING = re.compile(r"(^|\.)(KeyboardInterrupt|SignalException|ChildFailedError)$")
"""Exceptions of processes that were told to end, or that report others."""
MESSAGE_LIMIT = 240
"""Characters of a message that a sentence holds."""


class Level(enum.IntEnum):
    """Whose fault a failure can be; the order of blame."""

    EXCEPTION = 0
    """An exception of its own."""
    SIGNAL = 1
    """A fatal signal of its own, or the kernel's."""
    STATUS = 2
    """It ended itself with a status: usage errors, sys.exit, os._exit."""
    SOFT = 3
    """A failure of communication that may be its own."""
    SILENT = 4
    """Gone without a word."""
    COMPLAINT = 5
    """It lost a peer, or waited for one in vain."""
    AT_EXIT = 6
    """Aborted after its script had ended."""
    ENDED = 7
    """Told to end: SIGTERM, Ctrl-C, the agent's SIGKILL."""


OWN = (Level.EXCEPTION, Level.SIGNAL, Level.STATUS)
"""Levels among which the time decides."""


@dataclass(slots=True)
class Failure:
    """How one process failed."""

    view: View
    level: Level
    code: str | None
    words: str
    """What it said or how it died, e.g. ``KeyError: 'label_9917'`` or ``signal 11 (SIGSEGV)``."""
    at: float | None = None
    """Seconds, on the axis of `ddpdoctor_checks.crash.views.Clock`."""
    exception: ExceptionRecord | None = None
    type: str | None = None
    message: str = ""
    frames: tuple[Frame, ...] = ()
    """Innermost first; a loader worker's, then those of the rank that asked it."""
    entry: TextEntry | None = None
    groups: dict[str, str] = field(default_factory=dict)
    note: str = ""
    """Where it was raised, e.g. ``in DataLoader worker 3``."""
    proof: tuple[str, ...] = ()
    """What the kernel or the cgroup said."""
    sure: str = "high"

    @property
    def rank(self) -> int | None:
        """Rank of the process."""
        return self.view.rank

    @property
    def line(self) -> Frame | None:
        """The user's innermost line."""
        return user_line(self.frames)


def judge_view(view: View, context: Context) -> Failure | None:
    """Say how a process failed; None where it did not, or where nothing shows that it did."""
    process = view.process
    said = _judge_exceptions(view, context)
    if process is None:
        return said or _judge_crash(view, context) or _judge_texts(view, context)
    ended_well = process.exit_code == 0 and process.signal is None
    if ended_well or (
        said is None and process.clean_end and not process.exit_code and process.signal is None
    ):
        return None
    failure = said
    if failure is None and process.clean_end and process.signal in FATAL and process.exit_how is None:
        failure = Failure(view, Level.AT_EXIT, "ERR010", name_signal(process.signal))
    if failure is None and process.signal is not None:
        failure = _judge_signal(view, process.signal, context)
    if failure is None and process.exit_code:
        failure = _judge_status(view, process.exit_code, context)
    if failure is None and context.over and view.role == "rank":
        failure = Failure(
            view, Level.SILENT, "ERR005", "gone without an exception and without a clean end", sure="medium"
        )
    if failure is not None and failure.at is None and process.ended is not None:
        failure.at = context.clock.seconds(view.node, process.ended)
    return failure


@dataclass(frozen=True, slots=True)
class _Told:
    """One exception, read."""

    record: ExceptionRecord
    type: str
    message: str
    frames: tuple[Frame, ...]
    entry: TextEntry | None
    groups: dict[str, str]

    @property
    def complains(self) -> bool:
        return bool(_ENDING.search(self.type)) or (
            self.entry is not None and (self.entry.role == CONSEQUENCE or self.entry.code in WAITING)
        )


def _read(record: ExceptionRecord) -> _Told:
    kind, message, frames = record.type, record.message, record.frames
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


def short_type(name: str) -> str:
    """Return an exception's name without its module: ``torch.OutOfMemoryError`` stays telling without torch."""
    return name.rpartition(".")[2] or name


def _judge_exceptions(view: View, context: Context) -> Failure | None:
    """Choose the exception that ended a process: its own before a complaint, the main thread's before others'."""
    main = [e for e in view.exceptions if e.kind in ("uncaught", "error-file", "log", "handled")]
    inside = [e for worker in view.workers for e in worker.exceptions]
    inside += [e for e in view.exceptions if e.kind in ("worker", "thread")]
    if not main and (view.process is None or not (view.process.exit_code or view.process.signal)):
        if view.process is not None:
            return None  # a thread or a worker died of it, and the rank lived on
        main, inside = inside, []
    failures = [_judge_exception(view, record, context) for record in (*main, *inside)]
    own = [each for each in failures if each.level in OWN]
    chosen = own[0] if own else failures[0] if failures else None
    if chosen is not None and main and chosen.exception is not None and chosen.exception.kind == "thread":
        chosen.sure = "medium"
    if own and len(own) > 1:
        _add_worker(own)
    return chosen


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


def _judge_exception(view: View, record: ExceptionRecord, context: Context) -> Failure:
    told = [_read(each) for each in (record, *record.chain)]
    top, root = told[0], told[-1]
    level, shown = Level.EXCEPTION, top
    if root.complains:
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
        level = _choose_level(code, level)
    elif entry is not None:
        code = settle_text(view, entry, groups, context)
        level = _choose_level(code, Level.EXCEPTION)
    if code is None and _ENDING.search(shown.type) and short_type(shown.type) != "ChildFailedError":
        level = Level.ENDED
    failure = Failure(
        view,
        level,
        code,
        describe_exception(shown.type, shown.message),
        exception=record,
        type=shown.type,
        message=shown.message,
        frames=shown.frames,
        entry=entry,
        groups=groups,
        note=_note(record, view),
    )
    if record.at is not None:
        failure.at = context.clock.seconds(view.node, record.at)
    if level == Level.SOFT and shown is not top:
        failure.sure = "medium"
    return failure


def _choose_level(code: str | None, own: Level) -> Level:
    """Return the level of a text that was settled: one without a code speaks of others."""
    if code is None or code in WAITING:
        return Level.COMPLAINT
    return Level.SOFT if code in SOFT else own


def _note(record: ExceptionRecord, view: View) -> str:
    if record.kind == "worker" or (record.worker is not None):
        return (
            f"in DataLoader worker {record.worker}" if record.worker is not None else "in a DataLoader worker"
        )
    if record.kind == "thread":
        return f"in thread {record.thread}" if record.thread else "in another thread"
    if "in DataLoader worker process" in record.message[:200]:
        found = re.search(r"DataLoader worker process (\d{1,5})", record.message[:200])
        return f"in DataLoader worker {found[1]}" if found else ""
    if record.kind == "handled":
        return "handled by an exit"
    return ""


def describe_exception(kind: str, message: str) -> str:
    """Return ``KeyError: 'label_9917'``: name and first line of the message, cut."""
    line = next((each.strip() for each in message.splitlines() if each.strip()), "")
    name = short_type(kind)
    text = f"{name}: {line}" if line else name
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _texts(view: View, role: str) -> list[TextMatch]:
    return [text for text in view.texts if find_entry(text.entry).role == role]


def _choose_text(view: View) -> tuple[TextEntry, TextMatch] | None:
    """Return the narrowest text of a process that is no noise."""
    known = {text.entry: text for text in reversed(view.texts)}
    entry = choose_entry([(id, {}) for id in known])
    return None if entry is None else (entry, known[entry.id])


def _judge_texts(view: View, context: Context) -> Failure | None:
    """Judge a rank of which only texts are known, from logs."""
    found = _choose_text(view)
    if found is None:
        return None
    entry, text = found
    code = settle_text(view, entry, text.groups, context)
    level = (
        Level.COMPLAINT if entry.role == CONSEQUENCE or code in WAITING or code is None else Level.EXCEPTION
    )
    if code in SOFT:
        level = Level.SOFT
    failure = Failure(
        view, level, code, quote_line(text.text), entry=entry, groups=text.groups, sure="medium"
    )
    if text.at is not None:
        failure.at = context.clock.seconds(view.node, text.at)
    return failure


def quote_line(text: str) -> str:
    """Return a line of a log for a sentence: without a launcher's prefix, cut."""
    bare = re.sub(r"^\s*(?:\[[\w:. -]{1,40}\]:?\s*){0,3}(?:what\(\):\s*)?", "", text).strip()
    return bare if len(bare) <= MESSAGE_LIMIT else bare[: MESSAGE_LIMIT - 1] + "…"


def _judge_signal(view: View, signal: int, context: Context) -> Failure:
    failure = Failure(view, Level.SIGNAL, "ERR005", name_signal(signal))
    if view.crash is not None:
        failure.frames = view.crash.frames
    elif view.process is not None and view.process.exit_call:
        failure.frames = view.process.exit_call
    sender = view.process.signal_sender if view.process is not None else None
    if signal in (TERM, INT) or (signal in (KILL, HUP) and context.was_ended(view)):
        outside = signal == TERM and sender is not None and not sender.startswith("agent")
        failure.level = Level.SIGNAL if outside else Level.ENDED
    elif signal == KILL:
        _judge_kill(failure, context)
    elif signal == BUS:
        failure.code = "ERR003"
    elif signal == SEGV:
        failure.code = "ERR004"
    elif signal == HUP:
        failure.code, failure.level = "ENV012", Level.ENDED
    elif signal == ABRT:
        _judge_abort(failure, context)
    return failure


def _judge_crash(view: View, context: Context) -> Failure | None:
    """Judge a crash of which only Python's own dump is known, from logs that name neither rank nor process."""
    if view.crash is None:
        return None
    words = view.crash.title.removeprefix("Fatal Python error:").strip()
    signal = CRASHES.get(words)
    if signal is None:
        return None
    return replace(_judge_signal(view, signal, context), words=view.crash.title, sure="medium")


def _judge_kill(failure: Failure, context: Context) -> None:
    proof, sure = context.memory_proof(failure.view)
    if proof:
        failure.code, failure.proof, failure.sure = "ERR002", proof, sure
    else:
        failure.sure = "medium"


def _judge_abort(failure: Failure, context: Context) -> None:
    """Torch aborts a process on purpose too: then it has said why."""
    found = _choose_text(failure.view)
    if found is None:
        return
    entry, text = found
    code = settle_text(failure.view, entry, text.groups, context)
    failure.entry, failure.groups, failure.code = entry, text.groups, code
    failure.level = _choose_level(code, Level.SIGNAL)
    failure.words = f"{quote_line(text.text)} ({failure.words})"


def _judge_status(view: View, status: int, context: Context) -> Failure:
    """Judge a process that ended itself: what it printed before may say why."""
    process = view.process
    assert process is not None, "only a process has a status"
    failure = Failure(view, Level.STATUS, "ERR006", f"exit status {status}", frames=process.exit_call)
    if status > 128 and process.exit_how is None and status - 128 in (*FATAL, KILL, TERM, HUP, INT):
        # A shell in between turns a signal into a status (POSIX, 2.8.2).
        return replace(_judge_signal(view, status - 128, context), words=f"exit status {status}")
    found = _choose_text(view)
    if found is None:
        return failure
    entry, text = found
    code = settle_text(view, entry, text.groups, context)
    if _choose_level(code, Level.STATUS) == Level.COMPLAINT:
        if process.exit_how is None or not process.exit_call:
            failure.level, failure.code = Level.COMPLAINT, code
            failure.words = quote_line(text.text)
            failure.entry, failure.groups = entry, text.groups
        return failure
    failure.code, failure.entry, failure.groups = code, entry, text.groups
    failure.words = quote_line(text.text)
    failure.level = _choose_level(code, Level.STATUS)
    if process.exit_how is not None and status != USAGE:
        failure.sure = "medium"  # it was printed some time before the exit
    return failure
