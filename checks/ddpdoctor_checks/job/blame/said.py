"""What lines of a log settle: hardware before everything, and a cause where ranks only lost each other."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.evidence.job import TextMatch
from ddpdoctor.evidence.texts.matching import CAUSE, CONSEQUENCE, find_entry
from ddpdoctor_checks.job.blame.conditions import ABRT, KILL, settle_text
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import (
    DIFFERING,
    DOUBTED,
    QUIET,
    SOFT,
    WAITING,
    Failure,
    Level,
    is_of_stack,
    quote_line,
)
from ddpdoctor_checks.job.blame.views import View

DECISIVE = ("BKD010", "BKD012")
"""Codes of hardware and of what drives it: a line that speaks for one decides, whatever else a log says."""
LINK = "NET011"
"""Code of a peer that became silent, which NCCL reports by itself."""
EMPTY = frozenset({None, "COL005", "ERR011"})
"""Codes of ranks that waited or stopped, and do not say for what."""
RULED = frozenset(
    {
        "container-ended",
        "fabric-error",
        "gloo-loopback-dialled",
        "hydra-saw-signal",
        "launcher-names-signal",
        "launcher-saw-signal",
        "loopback-fallback",
        *DIFFERING,
        "memory-lock-limited",
        "mpi-process-received-signal",
        "mpirun-saw-signal",
        "nccl-loopback-chosen",
        "device-newer-than-torch",
        "peer-path-redirected",
        "ray-worker-died",
        "scheduler-cancelled",
        "scheduler-saw-signal",
        "shell-said-death",
        "shell-saw-signal",
        "signal-caught",
        "signal-received",
        "store-unroutable",
        "vllm-worker-died",
    }
)
"""Entries with a condition that their rule or the order of blame sees to."""
LAST = frozenset({
    "container-ended", "launcher-names-signal", "launcher-saw-signal", "ray-worker-died", "scheduler-cancelled",
    "scheduler-saw-signal",
    "shell-said-death", "shell-saw-signal", "vllm-worker-died",
})  # fmt: skip
"""Entries that only say that a process is gone."""
STUCK = DIFFERING | {"peer-path-redirected"}
"""Entries of `QUIET` that explain a job without an end too, with low confidence: nothing else speaks of it."""
GONE_NODES = frozenset(
    {
        "kernel-node-ended",
        "mpirun-lost-daemon",
        "pod-node-gone",
        "pod-not-started",
        "ray-node-died",
        "scheduler-lost-node",
        "scheduler-node-failure",
    }
)
"""Entries in which who manages the nodes says that one is gone or never came: what ranks say of peers follows."""
WITHOUT_DEVICE = "BKD001"
"""Code of a process that finds no GPU; why it finds none, another line of the log may say."""
NO_DEVICE_FOR = frozenset({"BKD005", "BKD012"})
"""Codes of why a process finds no GPU: the driver, or what the fabric lacks."""
GENERIC = frozenset({"BKD002"})
"""Codes that only say that a backend failed: any narrower one goes before."""


def judge_hardware(diagnosis: Diagnosis) -> bool:
    """Make a line on faulty hardware the cause; return whether there is one."""
    if diagnosis.job is not None and diagnosis.job.exit_code == 0:
        return False
    rows = [row for row in list_settled(diagnosis) if row[1] in DECISIVE and row[0].entry not in DOUBTED]
    return _blame(diagnosis, rows, Level.EXCEPTION)


def judge_said(diagnosis: Diagnosis) -> None:
    """Make a line that names a cause the job's, where only victims spoke or what was found says less."""
    if diagnosis.job is not None and diagnosis.job.exit_code == 0:
        return
    rows = [
        row
        for row in list_settled(diagnosis)
        if row[1] == LINK or row[1] not in WAITING or row[0].entry in GONE_NODES
    ]
    if diagnosis.cause is None and not _complains(diagnosis):
        stuck = [row for row in rows if row[0].entry in STUCK] if _never_ends(diagnosis) else []
        loud = [row for row in rows if row[0].entry not in QUIET]
        # A quiet line explains a failure that only a backend in general was blamed for.
        rows = [*loud, *(row for row in rows if row[0].entry in QUIET)] if _is_generic(loud) else loud
        if not rows and _blame(diagnosis, stuck, Level.SOFT, sure="low"):
            return
    if diagnosis.cause is not None and diagnosis.cause.code == WITHOUT_DEVICE:
        why = [row for row in rows if row[1] in NO_DEVICE_FOR and row[0].entry not in QUIET]
        if _blame(diagnosis, why, Level.EXCEPTION):
            return
    narrow = [row for row in rows if row[1] not in SOFT and row[1] != LINK and not _is_late(row[0])]
    narrow.sort(key=lambda row: row[0].entry not in GONE_NODES)
    soft = [row for row in rows if row[1] in SOFT | {LINK} and row[1] not in GENERIC]
    soft = soft or [row for row in rows if _is_late(row[0])]
    weight = _weigh(diagnosis.cause)
    for chosen, least, level in ((narrow, 3, Level.EXCEPTION), (soft, 2, Level.SOFT), (rows, 1, Level.SOFT)):
        if weight < least and _blame(diagnosis, chosen, level):
            return
    if diagnosis.cause is None and not diagnosis.failures:
        _judge_loose(diagnosis)


def _judge_loose(diagnosis: Diagnosis) -> None:
    """Take what a process waited for as the cause, where no process is known and nothing else was said.

    A launcher's prefix that is not known hides whose a line is; it says the same all the same.
    """
    for text in sorted(diagnosis.evidence.texts, key=lambda each: (each.file or "", each.line or 0)):
        entry = find_entry(text.entry)
        if entry.role != CONSEQUENCE or entry.code is None or text.attempt != diagnosis.attempt:
            continue
        view = View(text.node, text.pid, text.rank, text.attempt, text.host, "other")
        code = settle_text(view, entry, text.groups, diagnosis.context)
        if code is not None and _blame(diagnosis, [(text, code, view)], Level.COMPLAINT, sure="medium"):
            return


def _is_generic(rows: list[tuple[TextMatch, str, View]]) -> bool:
    """Whether lines say that a backend failed, and none says more."""
    return bool(rows) and all(row[1] in GENERIC for row in rows)


def _never_ends(diagnosis: Diagnosis) -> bool:
    """Whether several ranks are known to have started, and nothing shows how any of them ended."""
    job = diagnosis.job
    return len(diagnosis.world) > 1 and job is not None and job.exit_code is None and job.signal is None


def _is_late(text: TextMatch) -> bool:
    """Whether a line counts only where none says more: of an abort or a kill somebody else has said why."""
    gone = text.groups.get("signal") in (str(ABRT), str(KILL)) or text.groups.get("death") == "Killed"
    return text.entry in DOUBTED | LAST or gone


def _complains(diagnosis: Diagnosis) -> bool:
    """Whether anything says that something failed."""
    return bool(diagnosis.failures) or any(
        find_entry(text.entry).role == CONSEQUENCE for text in diagnosis.evidence.texts
    )


def _weigh(cause: Group | None) -> int:
    """Return how much a cause says: 0 nothing, 1 that a backend failed, 2 where, 3 that no line says more."""
    if cause is None or cause.code in EMPTY:
        return 0
    if cause.code in GENERIC or (cause.code == "ERR001" and is_of_stack(cause.first)):
        return 1
    process = cause.first.view.process
    aborted = cause.code == "ERR005" and process is not None and process.signal == ABRT
    if cause.code == "ERR006" or aborted or cause.level == Level.AT_EXIT:
        return 0
    if cause.code in SOFT or cause.level == Level.SILENT:
        return 2
    if cause.level == Level.COMPLAINT:
        return 2
    return 3


def list_settled(diagnosis: Diagnosis) -> list[tuple[TextMatch, str, View]]:
    """Return the lines of the attempt that settle a code, in the order in which they stand, and whose they are."""
    return sorted(_settle(diagnosis), key=lambda row: (row[0].file or "", row[0].line or 0))


def _settle(diagnosis: Diagnosis) -> Iterator[tuple[TextMatch, str, View]]:
    views = diagnosis.views
    by_text = {id(text): view for view in views.all for text in view.texts}
    for text in diagnosis.evidence.texts:
        entry = find_entry(text.entry)
        conditional = entry.condition is not None and entry.id not in RULED and not _is_deaf(diagnosis, text)
        earlier = text.rank is not None and text.attempt != diagnosis.attempt
        if entry.role != CAUSE or conditional or earlier:
            continue
        view = by_text.get(id(text)) or View(
            text.node, text.pid, text.rank, text.attempt, text.host or text.groups.get("node", ""), "other"
        )
        if view.role == "launcher":
            continue  # a rank's words on its launcher's stream: which rank's is judged with the ends of ranks
        code = settle_text(view, entry, text.groups, diagnosis.context)
        if code is not None:
            yield text, code, view


def _is_deaf(diagnosis: Diagnosis, text: TextMatch) -> bool:
    """Whether a name without an address is that of the very host that somebody could not reach."""
    if text.entry != "name-unresolvable":
        return False
    host = text.groups.get("host")
    return any(
        each.entry == "client-timed-out" and each.groups.get("host") == host
        for each in diagnosis.evidence.texts
    )


def _blame(
    diagnosis: Diagnosis, rows: list[tuple[TextMatch, str, View]], level: Level, *, sure: str | None = None
) -> bool:
    """Make the code of the first line the cause, with all lines that speak for it."""
    if not rows:
        return False
    code = rows[0][1]
    failures = []
    for text, own, view in rows:
        if own == code:
            entry = find_entry(text.entry)
            failure = Failure(
                view, level, code, quote_line(text.text), entry=entry, groups=text.groups, sure="medium"
            )
            if text.at is not None:
                failure.at = diagnosis.clock.seconds(view.node, text.at)
            failures.append(failure)
    if not any(each.rank is not None for each in failures):
        # A rank raised the very same: then it is known whose line it was.
        raised = [each for each in diagnosis.failures if each.code == code and each.rank is not None]
        failures = raised or failures
    doubted = _is_late(rows[0][0])
    failures[0].sure = sure or ("medium" if code in SOFT or doubted else "high")
    diagnosis.cause = Group(code, level, failures, failures[0])
    diagnosis.others = []
    diagnosis.reason = None
    return True
