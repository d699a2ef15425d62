"""What else a job can have died of, where only its words were read: a verdict with such a doubt is never sure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.evidence.job import NotableLine, TextMatch
from ddpdoctor.evidence.texts.matching import CONSEQUENCE, find_entry, match_line
from ddpdoctor_checks.job.blame.complaints import TIMED_OUT
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import OWN, QUIET, SOFT, WAITING, Failure, is_of_stack, quote_line
from ddpdoctor_checks.job.blame.said import DECISIVE, GENERIC, LAST, list_settled

LOSSES = frozenset({
    *TIMED_OUT, "nccl-remote-error", "nccl-peer-closed", "nccl-aborted", "gloo-peer-gone", "nccl-takes-process-down",
    "process-taken-down", "store-closed", "store-network-error",
})  # fmt: skip
"""Entries of ranks that lost a peer or gave up: what fails after them may only follow."""
GRAVE = (
    "NCCL WARN", "CUDA error", "HIP error", "NVRM: ", "Fatal Python error", "core dumped", "srun: error", "slurmstepd",
)  # fmt: skip
"""Words of lines that tell of a failure whatever else they say."""
OF_DEVICES = frozenset({
    "BKD001", "BKD004", "BKD005", "BKD007", "BKD010", "BKD012",
    "ERR003", "ERR004", "ERR005", "ERR007", "ERR008", "NET015",
})  # fmt: skip
"""Codes of what follows when a GPU or its fabric fails."""
OF_HARDWARE = (
    "unspecified launch failure",
    "hardware stack error",
    "invalid program counter",
    "illegal instruction",
)
"""CUDA errors that a GPU brings about as often as a program."""
MOST = 2
"""Doubts that are told."""


def list_doubts(diagnosis: Diagnosis) -> list[str]:
    """Return what else the cause can be, one clause each; nothing where the ends of processes were watched.

    A sentence that is read from a log is sure only where nothing else in the logs can have brought it about: no other
    cause stands beside it, no loss of a peer before it, and its own text has one meaning.
    """
    cause = diagnosis.cause
    if cause is None or any(
        each.view.process is not None and each.view.process.watched for each in cause.failures
    ):
        return []
    return list(dict.fromkeys(_doubt(diagnosis, cause)))[:MOST]


def lower(confidence: str) -> str:
    """Return the confidence of a verdict in doubt: medium at most."""
    return "medium" if confidence == "high" else confidence


def _doubt(diagnosis: Diagnosis, cause: Group) -> Iterator[str]:
    first = cause.first
    if first.entry is not None and first.entry.doubt is not None:
        yield first.entry.doubt
    if cause.code in SOFT and first.sure == "high":
        yield "a peer that exited first produces the same error"
    if cause.code == "ERR007" and any(each in first.words for each in OF_HARDWARE):
        yield "a faulty GPU reports the same error; an Xid in the kernel log distinguishes the two"
    if cause.code == "ERR004" and first.crash is None:
        yield "the log does not show in whose code it crashed: a library or the driver can bring it about too"
    yield from _rivals(diagnosis, cause)
    if cause.level in OWN and cause.code not in DECISIVE:
        loss = _loss_before(diagnosis, cause)
        if loss is not None:
            yield f'it follows a lost peer or a timeout: "{quote_line(loss.text)}" ({loss.file}:{loss.line})'
        elif cause.code == "ERR001" and is_of_stack(first):
            yield "communication and CUDA also raise errors that other ranks or earlier kernels caused"
        unknown = _unknown_before(diagnosis, cause)
        if unknown is not None:
            yield f'an unclassified error was reported before it: "{unknown.text}" ({unknown.file}:{unknown.line})'
    if cause.code in DECISIVE and first.exception is None and first.rank is None:
        own = next(
            (each for each in diagnosis.failures if each.level in OWN and each.code not in OF_DEVICES), None
        )
        if own is not None and own.rank is not None and not is_of_stack(own):
            yield f"rank {own.rank} failed by itself: {own.words}"


def _rivals(diagnosis: Diagnosis, cause: Group) -> Iterator[str]:
    """Yield lines that settle another code, and do not stand behind the cause in its own log."""
    known = {(text.file, text.line) for text in diagnosis.evidence.texts if _is_of(text, cause)}
    place = _place(cause.first) or next(iter(sorted(known, key=str)), None)
    weak = SOFT | GENERIC | WAITING | {cause.code, "ERR001", "ERR007"}
    explained = OF_DEVICES if cause.code in DECISIVE else frozenset()
    for text, code, _ in list_settled(diagnosis):
        if code in weak or code in explained or text.entry in QUIET | LAST:
            continue
        behind = place is not None and text.file == place[0] and (text.line or 0) >= (place[1] or 0)
        if not behind:
            yield f'another cause is reported: "{quote_line(text.text)}" ({text.file}:{text.line}, {code})'


def _is_of(text: TextMatch, cause: Group) -> bool:
    return any(quote_line(text.text) == each.words for each in cause.failures)


def _place(failure: Failure) -> tuple[str, int] | None:
    return failure.exception.source if failure.exception is not None else None


def _find_place(diagnosis: Diagnosis, cause: Group) -> tuple[str, int] | None:
    """Return the log and the line in which a cause stands first, as far as that is known."""
    own = _place(cause.first)
    if own is not None:
        return own
    known = [
        (text.file, text.line)
        for text in diagnosis.evidence.texts
        if text.file is not None and text.line is not None and _is_of(text, cause)
    ]
    return min(known, default=None)


def _loss_before(diagnosis: Diagnosis, cause: Group) -> TextMatch | None:
    """Return a loss that stands before a failure in its log, or of the same rank where the failure has no place."""
    place = _find_place(diagnosis, cause)
    for text in diagnosis.evidence.texts:
        if text.entry not in LOSSES or find_entry(text.entry).role != CONSEQUENCE:
            continue
        if place is None:
            if text.rank is not None and text.rank == cause.first.rank:
                return text
        elif text.file == place[0] and (text.line or 0) < place[1]:
            return text
    return None


def _unknown_before(diagnosis: Diagnosis, cause: Group) -> NotableLine | None:
    """Return a line of grave trouble that no entry knows, and that stands before a cause in its log."""
    place = _find_place(diagnosis, cause)
    if place is None:
        return None
    return next(
        (
            line
            for job in diagnosis.evidence.job
            for line in job.notable
            if line.trouble
            and (line.file, line.line < place[1]) == (place[0], True)
            and any(word in line.text for word in GRAVE)
            and not match_line(line.text)
        ),
        None,
    )
