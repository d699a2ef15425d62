"""The stages: when each ran, how it ended, and what the ranks did where one was cut."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.evidence import STAGES, Evidence, Frame, RankSet, StageRecord
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.words import count, format_ranks, format_seconds

CLASSES_SHOWN = 24
"""Classes of equal stacks, errors or exits of one stage."""
FRAMES_SHOWN = 24
"""Frames of one stack: the innermost are those that tell."""
TEXT_SHOWN = 2000
"""Characters of an error's message."""

STATUS_ORDER = ("cut", "failed", "unreached", "passed", "skipped")
"""A stage that ended differently on its nodes is shown by the first of these."""
STATUS_WORDS = {
    "cut": "stopped at its limit",
    "failed": "failed",
    "unreached": "not reached",
    "passed": "passed",
    "skipped": "skipped",
}


@dataclass(frozen=True, slots=True)
class StackView:
    """Ranks whose main threads stood at one place."""

    ranks: str
    state: str | None
    frames: tuple[tuple[str, str], ...]
    """Function and position, innermost first."""


@dataclass(frozen=True, slots=True)
class ErrorView:
    """The same exception or exit of some ranks."""

    ranks: str
    words: str
    frames: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StageView:
    """One stage over all nodes."""

    name: str
    status: str
    status_words: str
    bar: Markup | None
    start: str
    duration: str
    limit: str
    notes: tuple[str, ...]
    stacks: tuple[StackView, ...]
    errors: tuple[ErrorView, ...]


@dataclass(frozen=True, slots=True)
class StagesView:
    """All stages, and what else took time."""

    stages: tuple[StageView, ...]
    other: tuple[tuple[str, str, Markup], ...]
    """Phases of ddpdoctor itself: name, duration, bar."""
    loose: tuple[ErrorView, ...]
    """Errors and exits of ranks that belong to no stage."""
    span: str


def view_stages(evidence: Evidence, timings: dict[str, float], total: float, caps: Caps) -> StagesView:
    """Return the stages of a report.

    Args:
        evidence: stage records, errors and exits.
        timings: seconds per stage and phase.
        total: seconds that the whole command took.
        caps: where cuts are written down.
    """
    by_stage: dict[str, list[StageRecord]] = {}
    for record in evidence.stages:
        by_stage.setdefault(record.stage, []).append(record)
    names = [name for name in STAGES if name in by_stage or name in timings]
    names += [name for name in by_stage if name not in STAGES]
    ends = [
        record.started_s + record.duration_s
        for record in evidence.stages
        if record.started_s is not None and record.duration_s is not None
    ]
    span = max([total, *ends, *timings.values()], default=0.0)
    stages = tuple(
        _stage(name, by_stage.get(name, []), timings.get(name), evidence, span, caps) for name in names
    )
    other = tuple(
        (name, format_seconds(seconds), _bar(0.0, seconds, span, "t-other"))
        for name, seconds in timings.items()
        if name not in names
    )
    return StagesView(stages, other, _errors(None, names, evidence, caps), format_seconds(span))


def _stage(
    name: str,
    records: list[StageRecord],
    timing: float | None,
    evidence: Evidence,
    span: float,
    caps: Caps,
) -> StageView:
    status = min((record.status for record in records), key=_place, default="passed")
    durations = [record.duration_s for record in records if record.duration_s is not None]
    starts = [record.started_s for record in records if record.started_s is not None]
    limits = [record.limit_s for record in records if record.limit_s is not None]
    duration = max(durations) if durations else timing
    bar = None
    if duration is not None:
        bar = _bar(min(starts, default=0.0), duration, span, f"t-{status}")
    return StageView(
        name,
        status,
        STATUS_WORDS.get(status, status),
        bar,
        format_seconds(min(starts)) if starts else "–",
        format_seconds(duration) if duration is not None else "–",
        format_seconds(max(limits)) if limits else "–",
        _notes(records, status),
        _stacks(name, records, caps),
        _errors(name, [], evidence, caps),
    )


def _place(status: str) -> int:
    return STATUS_ORDER.index(status) if status in STATUS_ORDER else 0


def _notes(records: list[StageRecord], status: str) -> tuple[str, ...]:
    """Reasons, ranks that did not finish, and nodes where the stage ended otherwise."""
    notes: list[str] = []
    unfinished = RankSet().union(*(record.unfinished for record in records)) if records else RankSet()
    if unfinished:
        notes.append(f"{format_ranks(unfinished)} did not finish")
    reasons: dict[str, int] = {}
    for record in records:
        for text in (record.reason, record.stacks_note and f"no stacks: {record.stacks_note}"):
            if text:
                reasons[text] = reasons.get(text, 0) + 1
    many = len(records) > 1
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    notes += [f"{text} ({count(n, 'node')})" if many else text for text, n in ordered[:CLASSES_SHOWN]]
    if len(ordered) > CLASSES_SHOWN:
        notes.append(f"… and {len(ordered) - CLASSES_SHOWN:,} more reasons")
    others: dict[str, int] = {}
    for record in records:
        if record.status != status:
            others[record.status] = others.get(record.status, 0) + 1
    if others:
        words = ", ".join(f"{STATUS_WORDS.get(s, s)} on {count(n, 'node')}" for s, n in others.items())
        notes.append(f"elsewhere: {words}")
    return tuple(notes)


def _frames(frames: tuple[Frame, ...], caps: Caps, what: str) -> tuple[tuple[str, str], ...]:
    taken = caps.take(frames, FRAMES_SHOWN, what)
    return tuple((frame.function, f"{frame.file}:{frame.line}") for frame in taken)


def _stacks(stage: str, records: list[StageRecord], caps: Caps) -> tuple[StackView, ...]:
    groups: dict[tuple[tuple[Frame, ...], str | None], list[RankSet]] = {}
    for record in records:
        for each in record.stacks:
            groups.setdefault((each.frames, each.state), []).append(each.ranks)
    listed = caps.take(list(groups.items()), CLASSES_SHOWN, f"classes of stacks in {stage}")
    return tuple(
        StackView(
            format_ranks(RankSet().union(*sets)),
            state,
            _frames(frames, caps, f"frames of a stack in {stage}"),
        )
        for (frames, state), sets in listed
    )


def _errors(stage: str | None, known: list[str], evidence: Evidence, caps: Caps) -> tuple[ErrorView, ...]:
    """Exceptions and exits of one stage (None: of no known stage), equal ones joined over ranks."""
    groups: dict[tuple[str, tuple[Frame, ...]], list[int]] = {}
    for error in evidence.errors:
        if error.stage == stage or (stage is None and error.stage not in known):
            groups.setdefault((f"{error.type}: {error.message}", error.frames), []).append(error.rank)
    for gone in evidence.exits:
        if gone.stage == stage or (stage is None and gone.stage not in known):
            groups.setdefault((_describe_exit(gone.signal, gone.exit_code, gone.detail), ()), []).append(
                gone.rank
            )
    where = stage or "no stage"
    listed = caps.take(list(groups.items()), CLASSES_SHOWN, f"errors in {where}")
    return tuple(
        ErrorView(
            format_ranks(RankSet(ranks)),
            caps.clip(words, TEXT_SHOWN, f"an error in {where}"),
            _frames(frames, caps, f"frames of an error in {where}"),
        )
        for (words, frames), ranks in listed
    )


def _describe_exit(signal: int | None, exit_code: int | None, detail: str | None) -> str:
    if signal is not None:
        words = f"killed by signal {signal}"
    elif exit_code is not None:
        words = f"exited with code {exit_code}"
    else:
        words = "gone, exit status unknown"
    return f"{words}: {detail}" if detail else words


def _bar(start: float, duration: float, span: float, css_class: str) -> Markup:
    """Draw one bar of the time line, at least wide enough to be seen."""
    drawing = Drawing(100, 6, "time", stretch=True)
    drawing.rect(0, 0, 100, 6, "t-back")
    if span > 0:
        width = max(100 * duration / span, 0.6)
        drawing.rect(min(100 * max(start, 0.0) / span, 100 - 0.6), 0, min(width, 100), 6, css_class)
    return drawing.markup()
