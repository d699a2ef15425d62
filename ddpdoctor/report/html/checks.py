"""Checks by family: counts, and a reason for everything that is not a pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.judge.runner import CheckRow
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.svg import stacked_bar
from ddpdoctor.report.words import clip, count

STATUSES = ("fail", "error", "unknown", "skipped", "pass")
"""Statuses in the order in which they matter."""
STATUS_WORDS = {
    "pass": "passed",
    "fail": "found something",
    "skipped": "not applicable",
    "unknown": "inconclusive",
    "error": "broke",
}
FAMILY_NAMES = {"ddp": "DDP"}
"""Families whose name is not a word; the others begin with a capital."""
REASON_LENGTH = 600
"""Characters of a reason: some six lines."""
REASON_SHORT = 110
"""Characters of a reason where reasons are counted: one line; the family above has the whole."""
REASONS_SHOWN = 8
"""Counted reasons; the rest is told by family."""
ROWS_SHOWN = 400
"""Checks of one family; the whole catalogue has about a hundred codes."""


@dataclass(frozen=True, slots=True)
class CheckView:
    """One check."""

    id: str
    codes: tuple[str, ...]
    source: str | None
    """Distribution, where it is not ddpdoctor's own."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """Checks of a family that ended alike for the same reason."""

    status: str
    reason: str
    checks: tuple[CheckView, ...]


@dataclass(frozen=True, slots=True)
class FamilyView:
    """The checks of one family."""

    name: str
    counts: tuple[tuple[str, int], ...]
    bar: Markup
    notable: tuple[GroupView, ...]
    passed: tuple[CheckView, ...]


@dataclass(frozen=True, slots=True)
class ChecksView:
    """All checks."""

    families: tuple[FamilyView, ...]
    counts: tuple[tuple[str, int], ...]
    bar: Markup
    reasons: tuple[tuple[str, int], ...]
    """Reasons for which checks were skipped or could not look, the most frequent first."""


def view_checks(rows: tuple[CheckRow, ...], caps: Caps) -> ChecksView:
    """Return the checks by family, in order of first appearance."""
    families: dict[str, list[CheckRow]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    reasons = Counter(
        clip(row.reason, REASON_SHORT) for row in rows if row.status in ("skipped", "unknown") and row.reason
    )
    return ChecksView(
        tuple(_family(name, members, caps) for name, members in families.items()),
        _count(rows),
        _bar(rows),
        caps.take(reasons.most_common(), REASONS_SHOWN, "counted reasons of checks that did not run"),
    )


def _family(name: str, rows: list[CheckRow], caps: Caps) -> FamilyView:
    ordered = sorted(rows, key=lambda row: _place(row.status))
    taken = caps.take(ordered, ROWS_SHOWN, f"checks of {name}")
    groups: dict[tuple[str, str], list[CheckView]] = {}
    for row in taken:
        if row.status != "pass":
            reason = caps.clip(row.reason or "no reason given", REASON_LENGTH, f"reason of {row.id}")
            groups.setdefault((row.status, reason), []).append(_view(row))
    return FamilyView(
        FAMILY_NAMES.get(name, name[:1].upper() + name[1:]),
        _count(rows),
        _bar(rows),
        tuple(GroupView(status, reason, tuple(found)) for (status, reason), found in groups.items()),
        tuple(_view(row) for row in taken if row.status == "pass"),
    )


def _view(row: CheckRow) -> CheckView:
    return CheckView(row.id, row.codes, None if row.source == "ddpdoctor" else row.source)


def _place(status: str) -> int:
    return STATUSES.index(status) if status in STATUSES else 0


def _count(rows: tuple[CheckRow, ...] | list[CheckRow]) -> tuple[tuple[str, int], ...]:
    counted = Counter(row.status for row in rows)
    return tuple((status, counted[status]) for status in reversed(STATUSES) if counted[status])


def _bar(rows: tuple[CheckRow, ...] | list[CheckRow]) -> Markup:
    return stacked_bar([(number, f"b-{status}") for status, number in _count(rows)], "bar")


def describe_counts(counts: tuple[tuple[str, int], ...]) -> str:
    """Return ``58 passed, 6 not applicable`` for screen readers and print."""
    return ", ".join(f"{number:,} {STATUS_WORDS[status]}" for status, number in counts) or count(0, "check")
