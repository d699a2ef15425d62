"""Running checks: needs, time limits, isolation. A check that raises or hangs stops nothing else."""

from __future__ import annotations

import contextlib
import contextvars
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.judge.finding import CONFIDENCES, ROLES, SEVERITIES, STATES, Finding
from ddpdoctor.judge.once import keeping
from ddpdoctor.judge.registry import OURS, CannotLook, Check, NotApplicable

CHECK_LIMIT_S = 20.0
"""A pure function over the evidence of 16,384 ranks takes well under a second; 20 s is a hang. For checks that come
with ddpdoctor it is processor time, since on a busy machine wall time says nothing; others may also wait in vain."""
POLL_S = 0.25

_NEEDABLE = frozenset({*KINDS, "launch", "extra"})
"""What a check may name in ``needs``."""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """How one check ended."""

    id: str
    codes: tuple[str, ...]
    family: str
    status: str
    """pass, fail, skipped, unknown or error."""
    reason: str | None
    duration_s: float
    source: str
    required: bool = True

    def to_dict(self) -> dict[str, object]:
        """Return the report form (``checks[]`` of the schema)."""
        return {
            "id": self.id,
            "codes": list(self.codes),
            "family": self.family,
            "status": self.status,
            "reason": self.reason,
            "duration_s": round(self.duration_s, 6),
            "source": self.source,
            "required": self.required,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CheckRow:
        """Read the report form; keys that are not known are ignored."""
        return cls(
            data["id"],
            tuple(data["codes"]),
            data["family"],
            data["status"],
            data.get("reason"),
            float(data["duration_s"]),
            data["source"],
            bool(data.get("required", True)),
        )


def run_checks(
    checks: Sequence[Check],
    evidence: Evidence,
    *,
    limit_s: float = CHECK_LIMIT_S,
    review: Callable[[Finding], Finding] | None = None,
    wanted: Callable[[str], bool] | None = None,
) -> tuple[list[CheckRow], list[Finding]]:
    """Run every check over the evidence.

    Args:
        checks: those to run.
        evidence: what they look at.
        limit_s: seconds that one check may take: of processor time where it comes with ddpdoctor.
        review: gets each finding before its check's row is made, and may give back one of another state.
        wanted: whether findings of a code are wanted; of others there is no sign, also not in the row of their check.

    Returns:
        One row per check in the given order, and all findings with code, name and severity filled in. What a check
        has found before it says that it cannot look further is found.
    """
    rows: list[CheckRow] = []
    findings: list[Finding] = []
    with keeping():
        for each in checks:
            row, found = _run_one(
                each, evidence, limit_s, review or (lambda finding: finding), wanted or (lambda code: True)
            )
            rows.append(row)
            findings.extend(found)
    return rows, findings


def _run_one(
    each: Check,
    evidence: Evidence,
    limit_s: float,
    review: Callable[[Finding], Finding],
    wanted: Callable[[str], bool],
) -> tuple[CheckRow, list[Finding]]:
    def row(status: str, reason: str | None, seconds: float = 0.0) -> CheckRow:
        required = each.required or outcome.decides
        return CheckRow(each.id, each.codes, each.family, status, reason, seconds, each.source, required)

    outcome = _Outcome()
    for kind in each.needs:
        if kind not in _NEEDABLE:
            return row("error", f"{each.source}: needs unknown evidence {kind!r}"), []
        why = evidence.absent.get(kind)
        if why is not None and not getattr(evidence, kind):
            return row("unknown" if why.applicable else "skipped", why.reason), []
    context = contextvars.copy_context()  # with what other checks have judged already
    thread = threading.Thread(target=context.run, args=(_call, each, evidence, outcome), daemon=True)
    started = time.perf_counter()
    thread.start()
    _await(thread, outcome, limit_s, ours=each.source == OURS)
    seconds = time.perf_counter() - started
    if thread.is_alive():
        return row("error", f"{each.source}: no answer within {limit_s:g} s", seconds), []
    found = _without_repeats(each for each in outcome.findings if wanted(each.code))
    findings = [review(finding) for finding in found]
    real = [f for f in findings if f.severity != "info" and f.state == "active"]
    if real and outcome.status != "error":
        return row("fail", real[0].message, seconds), findings
    return row(outcome.status or "pass", outcome.reason, seconds), findings


def _without_repeats(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings but those that say of the same ranks and lines what one before them has said.

    A program that makes a second optimizer makes its mistake again.
    """
    first: dict[tuple[object, ...], Finding] = {}
    for each in findings:
        first.setdefault((each.code, each.message, each.ranks, each.nodes, each.where), each)
    return list(first.values())


@dataclass(slots=True)
class _Outcome:
    findings: list[Finding]
    status: str
    reason: str | None
    decides: bool
    """What it could not look at decides whether all is well."""
    clock: int | None
    """Clock of the thread's processor time, where the system has one."""

    def __init__(self) -> None:
        self.findings, self.status, self.reason, self.clock = [], "", None, None
        self.decides = False


def _await(thread: threading.Thread, outcome: _Outcome, limit_s: float, *, ours: bool) -> None:
    """Wait until a check has ended or its limit has passed."""
    thread.join(min(limit_s, POLL_S) if ours else limit_s)
    spent = 0.0
    while ours and thread.is_alive() and spent < limit_s:
        thread.join(min(limit_s, POLL_S))
        if outcome.clock is not None:
            with contextlib.suppress(OSError):  # it ends just now
                spent = time.clock_gettime(outcome.clock)


def _call(each: Check, evidence: Evidence, outcome: _Outcome) -> None:
    if hasattr(time, "pthread_getcpuclockid"):
        outcome.clock = time.pthread_getcpuclockid(threading.get_ident())
    try:
        for finding in each.function(evidence):
            outcome.findings.append(_complete(each, finding))
    except CannotLook as why:
        outcome.status, outcome.reason, outcome.decides = "unknown", str(why), why.decides
    except NotApplicable as why:
        outcome.status, outcome.reason = "skipped", str(why)
    except BaseException as problem:  # a check of anyone's must not stop the others
        outcome.findings.clear()
        outcome.status = "error"
        outcome.reason = f"{each.source}: {type(problem).__name__}{_read_message(problem)}"


def _read_message(problem: BaseException) -> str:
    """Return the message of anyone's exception, whose own __str__ may raise."""
    try:
        text = str(problem)
    except Exception:
        return ""
    return f": {text}" if text else ""


def _complete(each: Check, finding: Finding) -> Finding:
    code = finding.code or each.codes[0]
    page = next((page for page in each.pages if page.code == code), None)
    if page is None:
        raise ValueError(f"finding with code {code}, which {each.id} does not declare")
    severity = finding.severity or page.severity
    # What a job died of is an error, also where the page only warns of it before.
    if SEVERITIES.index(severity) < SEVERITIES.index(page.severity) and not finding.decisive:
        raise ValueError(f"{code} is at most {page.severity}, not {severity}")
    for name, known in (("role", ROLES), ("confidence", CONFIDENCES), ("state", STATES)):
        if getattr(finding, name) not in known:
            raise ValueError(f"{code}: {name} is {getattr(finding, name)!r}, not one of {', '.join(known)}")
    for name in ("ranks", "victims"):
        if not isinstance(getattr(finding, name), RankSet):
            raise TypeError(f"{code}: {name} is no RankSet")
    finding = replace(finding, code=code, name=page.name, severity=severity)
    json.dumps(finding.to_dict(), allow_nan=False)  # raises where the report could not be written
    return finding
