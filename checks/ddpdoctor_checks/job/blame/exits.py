"""How processes ended: exceptions, signals, statuses, last words, and the code that these settle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.job import Moment, ProcessRecord, TextMatch
from ddpdoctor.evidence.texts.matching import CONSEQUENCE, TextEntry, choose_entry
from ddpdoctor.judge import Where
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.stage_evidence import name_signal
from ddpdoctor_checks.job.blame.conditions import (
    ABRT,
    BUS,
    HUP,
    INT,
    KILL,
    SEGV,
    TERM,
    Context,
    settle_text,
)
from ddpdoctor_checks.job.blame.exceptions import judge_exceptions
from ddpdoctor_checks.job.blame.failures import (
    DOUBTED,
    OWN,
    SOFT,
    WAITING,
    Failure,
    Level,
    choose_level,
    quote_line,
)
from ddpdoctor_checks.job.blame.views import View

FALLS_BACK = frozenset({"ofi-plugin-unusable"})
"""Entries of a plugin for adapters that this node may not have at all: NCCL goes on with another network."""
FATAL = (4, 5, ABRT, BUS, 8, SEGV)
"""Signals that a process gets for what it did itself (signal(7): ILL, TRAP, ABRT, BUS, FPE, SEGV)."""
AGENT_LOOKS_S = 1.0
"""How much later than it happened a launcher may notice an end: torchrun looks ten times a second
(torch/distributed/run.py, --monitor-interval), on a busy machine less often."""

CRASHES = {
    "Segmentation fault": SEGV,
    "Bus error": BUS,
    "Aborted": ABRT,
    "Floating-point exception": 8,
    "Floating point exception": 8,
    "Illegal instruction": 4,
}
"""What faulthandler says of a signal (CPython, Modules/faulthandler.c), and the signal (signal(7))."""

USAGE = 2
"""Status of a usage error (argparse, error())."""


def judge_view(view: View, context: Context) -> Failure | None:
    """Say how a process failed; None where it did not, or where nothing shows that it did."""
    process = view.process
    said = judge_exceptions(view, context)
    if process is None:
        return said or _judge_crash(view, context) or _judge_texts(view, context)
    ended_well = process.exit_code == 0 and process.signal is None
    if ended_well or (
        said is None and process.clean_end and not process.exit_code and process.signal is None
    ):
        return None
    failure = said
    if process.signal is not None and (said is None or _is_of_thread(said)):
        failure = _judge_death(view, process.signal, said, context)
    told = _read_request(process)
    if process.exit_code and (failure is None or (told is not None and _is_of_thread(failure))):
        failure = _judge_status(view, process.exit_code, context)
        failure.before = said
        if said is not None:
            said.level = Level.SOFT
    if failure is None and context.over and view.role == "rank" and not process.running:
        failure = Failure(
            view, Level.SILENT, "ERR005", "gone without an exception and without a clean exit", sure="medium"
        )
    if failure is not None and failure.at is None:
        _date(failure, process, context)
    if failure is not None and told is not None and failure.at is not None:
        after = context.clock.seconds(view.node, told) <= failure.at
        if after and failure.level in (
            *OWN,
            Level.SOFT,
        ):  # handlers of such signals raise and exit as they like
            failure.level, failure.since = Level.ENDED, None
    exits = failure is not None and (failure.level, failure.code) == (Level.STATUS, "ERR006")
    if failure is not None and exits and view.role != "rank" and _hands_on(view, context):
        failure.level, failure.since = Level.ENDED, None
    return failure


def _hands_on(view: View, context: Context) -> bool:
    """Whether an exit only tells that a rank below the process had failed: launchers end with their ranks' status."""
    process = view.process
    if process is None or process.ended is None:
        return False
    end = context.clock.seconds(view.node, process.ended)
    return any(
        each.process is not None
        and each.process.ended is not None
        and (each.process.exit_code or each.process.signal)
        and context.clock.seconds(each.node, each.process.ended) <= end
        for each in context.views.ranks
        if context.views.is_above(view, each)
    )


def _read_request(process: ProcessRecord) -> Moment | None:
    """Return when its launcher told a process to end."""
    return next((each.at for each in process.milestones if each.name == "told-to-end"), None)


def _is_of_thread(failure: Failure) -> bool:
    return failure.exception is not None and failure.exception.kind == "thread"


def _aborts_at_exit(view: View, context: Context) -> bool:
    """Whether a log has C++'s words for a thread that was still running when the process ended, and they may be its."""
    texts = [*view.texts, *context.views.loose]
    return any(text.entry == "aborted-at-exit" and text.rank in (None, view.rank) for text in texts)


def _judge_death(view: View, signal: int, thread: Failure | None, context: Context) -> Failure:
    """Judge a process that a signal ended; one of its threads may have raised something long before."""
    process = view.process
    if process is not None and process.clean_end and signal in FATAL and process.exit_how is None:
        return Failure(view, Level.AT_EXIT, "ERR010", name_signal(signal))
    if signal == ABRT and process is not None and not process.watched and _aborts_at_exit(view, context):
        return Failure(view, Level.AT_EXIT, "ERR010", name_signal(signal), sure="medium")
    failure = _judge_signal(view, signal, context)
    failure.before = thread
    if thread is not None and failure.level not in OWN:
        # Told to end: the thread may be why peers went away, but any failure of their own goes before it.
        thread.level = Level.SOFT
    return failure


def _date(failure: Failure, process: ProcessRecord, context: Context) -> None:
    """Say when a process ended: for signals, when it was noticed, and since when it can have happened."""
    view, clock = failure.view, context.clock
    if process.ended is None:
        return
    failure.at = clock.seconds(view.node, process.ended)
    failure.coarse = process.ended.is_coarse
    if view.crash is not None and view.crash.at is not None and failure.level in OWN:
        failure.at = min(failure.at, clock.seconds(view.node, view.crash.at))
    elif failure.level == Level.SIGNAL and process.signal is not None and _is_settled(failure, process):
        last = max((clock.seconds(view.node, each.at) for each in process.milestones), default=0.0)
        failure.since = max(last, failure.at - AGENT_LOOKS_S)


def _is_settled(failure: Failure, process: ProcessRecord) -> bool:
    """Whether a signal is known to be no launcher's."""
    return bool(failure.proof) or process.signal in FATAL or process.signal_sender is not None


def _choose_text(view: View) -> tuple[TextEntry, TextMatch] | None:
    """Return the narrowest text of a process that is no noise."""
    known = {text.entry: text for text in reversed(view.texts)}
    entry = choose_entry([(id, {}) for id in known if id not in DOUBTED]) or choose_entry(
        [(id, {}) for id in known]
    )
    return None if entry is None else (entry, known[entry.id])


def _judge_texts(view: View, context: Context) -> Failure | None:
    """Judge a rank of which only texts are known, from logs."""
    found = _choose_text(view)
    if found is None or found[0].id in FALLS_BACK:
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


def _judge_signal(view: View, signal: int, context: Context) -> Failure:
    failure = Failure(view, Level.SIGNAL, "ERR005", name_signal(signal))
    process = view.process
    if view.crash is not None:
        failure.frames = view.crash.frames
    elif process is not None and process.exit_call:
        failure.frames = process.exit_call
    known = process is not None and process.signal_sender is not None
    if context.was_ended(view) and signal not in FATAL:
        failure.level = Level.ENDED
    elif signal in (TERM, INT):
        # Of a request to end that nobody wrote down, the launcher is the likely sender.
        failure.level = Level.SIGNAL if known and not context.asked else Level.ENDED
    elif signal == KILL:
        _judge_kill(failure, context)
    elif signal == BUS:
        failure.code = "ERR003"
    elif signal == SEGV:
        failure.code = "ERR004"
    elif signal == HUP and not (process is not None and process.signal_sender == "itself"):
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
    failure.level = choose_level(code, Level.SIGNAL)
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
        # A log without the exception may be cut, or one of several.
        failure.sure = "high" if process.watched or process.exit_call else "medium"
        return failure
    entry, text = found
    code = settle_text(view, entry, text.groups, context)
    if choose_level(code, Level.STATUS) == Level.COMPLAINT:
        if process.exit_how is None or not process.exit_call:
            failure.level, failure.code = Level.COMPLAINT, code
            failure.words = quote_line(text.text)
            failure.entry, failure.groups = entry, text.groups
        return failure
    failure.code, failure.entry, failure.groups = code, entry, text.groups
    failure.words = quote_line(text.text)
    failure.level = choose_level(code, Level.STATUS)
    if process.exit_how is not None and status != USAGE:
        failure.sure = "medium"  # it was printed some time before the exit
    return failure


def list_exits(views: Sequence[View], ranks: RankSet) -> list[Where]:
    """Return the lines on which some ranks called sys.exit or os._exit, one place for each line."""
    found: dict[Frame, list[int]] = {}
    for view in views:
        line = user_line(view.process.exit_call) if view.process is not None else None
        if line is not None and view.rank is not None and view.rank in ranks:
            found.setdefault(line, []).append(view.rank)
    return [in_frame(line, RankSet(who), "culprit") for line, who in found.items()]
