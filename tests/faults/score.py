"""Comparing what was reported with what is true."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.faults.trial import Trial
from tests.faults.truth import Truth

NATURAL = ("ERR010",)
"""torch 2.13 on CPU aborts a rank now and then after its script has ended; a report of it is right in any case."""


@dataclass(frozen=True, slots=True)
class Score:
    """One row of the table. None: the truth says nothing about it, or it could not be looked at."""

    name: str
    expected: str
    got: str
    detected: bool | None
    """A problem was reported; None for a healthy job."""
    code: bool | None
    ranks: bool | None
    line: bool | None
    content: bool | None
    """Parameter names, ports and other texts that the finding has to carry, and findings beside it."""
    exit: bool
    false_alarms: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    verdict_s: float | None = None
    """From the last rank blocking to the look that the first finding is made of; None where it is of none."""
    proved: bool = False
    """The first finding is a proof that the job cannot go on, no suspicion."""
    confidence: str | None = None
    """Confidence of the first finding; None where none of warning or above was reported."""

    @property
    def is_right(self) -> bool:
        """Whether nothing was missed, wrong or too much."""
        told = (self.detected, self.code, self.ranks, self.line, self.content)
        return self.exit and not self.false_alarms and all(value is not False for value in told)


def score_trial(truth: Truth, trial: Trial) -> Score:
    """Compare one trial with the truth."""
    report = trial.report or {"verdict": {"status": "no report", "code": None}, "findings": []}
    findings: list[dict[str, Any]] = [f for f in report["findings"] if f.get("state") != "withdrawn"]
    notes = [] if trial.report else ["no report"]
    if trial.exit_code != truth.exit:
        notes.append(f"exit {trial.exit_code}, expected {truth.exit}")
    problem = report["verdict"]["status"] == "problems"
    first = findings[0] if findings else None
    right = first is not None and first["code"] in truth.codes
    broken = not truth.is_healthy
    if broken and not right:
        said = first["code"] if first is not None else report["verdict"]["status"]
        notes.append(f"said {said}, expected {' or '.join(truth.codes)}")
    ranks = _compare_ranks(truth, first, notes) if broken else None
    line = _compare_line(truth, first, notes) if broken else None
    content = _compare_content(truth, first, findings, notes) if broken else None
    false_alarms = _find_false_alarms(truth, findings, right)
    if false_alarms:
        notes.append(f"further: {', '.join(false_alarms)}")
    return Score(
        name=truth.name,
        expected=truth.code or "healthy",
        got=str(report["verdict"]["code"] or report["verdict"]["status"]),
        detected=problem and first is not None if broken else None,
        code=right if broken else None,
        ranks=ranks,
        line=line,
        content=content,
        exit=trial.exit_code == truth.exit,
        false_alarms=false_alarms,
        seconds=trial.seconds,
        notes=tuple(notes),
        verdict_s=first.get("details", {}).get("still_s") if first is not None else None,
        proved=first is not None and bool(first.get("details", {}).get("proof")),
        confidence=first.get("confidence") if first is not None and first.get("severity") != "info" else None,
    )


def _compare_ranks(truth: Truth, first: dict[str, Any] | None, notes: list[str]) -> bool | None:
    if truth.ranks is None:
        return None
    named = set(first["ranks"]) if first else set()
    true = set(truth.ranks)
    right = bool(named) and named <= true if truth.some else named == true
    if not right:
        notes.append(f"ranks {sorted(named)}, expected {'some of ' * truth.some}{sorted(true)}")
    victims = named & set(truth.victims)
    if victims:
        notes.append(f"affected ranks {sorted(victims)} named")
    cleared = set(first.get("victims", ())) & true if first and not truth.some else set()
    if cleared:
        notes.append(f"{sorted(cleared)} called innocent")
    return right and not victims and not cleared


def _compare_line(truth: Truth, first: dict[str, Any] | None, notes: list[str]) -> bool | None:
    if not truth.lines:
        return None
    places = [(str(place.get("file")), place.get("line")) for place in (first["where"] if first else [])]
    right = bool(places) and places[0] in truth.lines
    if not right:
        wanted = " or ".join(f"{file}:{line}" for file, line in truth.lines)
        notes.append(f"line {':'.join(map(str, places[0])) if places else 'none'}, expected {wanted}")
    return right


def _compare_content(
    truth: Truth, first: dict[str, Any] | None, findings: Sequence[dict[str, Any]], notes: list[str]
) -> bool | None:
    if not truth.mentions and not truth.beside:
        return None
    text = json.dumps(first) if first else ""
    missing = [word for word in truth.mentions if word not in text]
    codes = {finding["code"] for finding in findings}
    missing += [code for code in truth.beside if code not in codes]
    if missing:
        notes.append(f"not said: {', '.join(missing)}")
    return not missing


def _find_false_alarms(
    truth: Truth, findings: Sequence[dict[str, Any]], first_is_right: bool
) -> tuple[str, ...]:
    """Every finding that accuses somebody of what is not so; a first one of the wrong class is counted there."""
    allowed = {*truth.codes, *truth.beside, *truth.also, *NATURAL}
    rest = findings if truth.is_healthy or first_is_right else findings[1:]
    loud = [f for f in rest if f["severity"] != "info" and f["role"] != "consequence"]
    return tuple(finding["code"] for finding in loud if finding["code"] not in allowed)
