"""From findings to a verdict: which finding is the cause, and the one sentence that says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpdoctor.judge.finding import CONFIDENCES, ROLES, SEVERITIES, Finding
from ddpdoctor.judge.registry import Check
from ddpdoctor.judge.runner import CheckRow

HEALTHY = "healthy"
"""What a job or a machine is called in which nothing is wrong; source that is only read is never called so."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one command."""

    status: str
    """problems, healthy, unknown or error."""
    headline: str
    code: str | None
    looked: int
    """Checks that could look (pass or fail)."""
    of: int
    """Checks that there are."""

    def to_dict(self) -> dict[str, object]:
        """Return the report form."""
        return {
            "status": self.status,
            "headline": self.headline,
            "code": self.code,
            "looked": self.looked,
            "of": self.of,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Verdict:
        """Read the report form; keys that are not known are ignored."""
        return cls(data["status"], data["headline"], data.get("code"), data["looked"], data["of"])


def order_findings(
    findings: Sequence[Finding], checks: Sequence[Check], *, related: bool = True
) -> list[Finding]:
    """Return the findings with consequences marked and the root cause first.

    A finding becomes a consequence when the page of an active error or warning that is itself a cause says that it
    ``explains`` its code; where two codes explain each other, that of the earlier check is the cause. Then
    the order is: what ended the job (`Finding.decisive`), role, severity, confidence, order of the checks.
    A decisive finding stays a cause unless another decisive one explains its code: both were seen to end the job.

    Args:
        findings: of all checks.
        checks: in the order in which they count.
        related: whether the findings are of one job; in source each stands by itself.
    """
    explained: dict[str, set[str]] = {}
    for each in checks:
        for page in each.pages:
            explained.setdefault(page.code, set()).update(page.explains)
    causes = [f for f in findings if related and f.state == "active" and f.role == "cause"]
    present = {f.code for f in causes if f.severity != "info"}
    place: dict[str, int] = {}
    for each in checks:
        for code in each.codes:
            place.setdefault(code, len(place))
    hidden: set[str] = set()
    for code in sorted(present, key=lambda code: (place.get(code, len(place)), code)):
        if code not in hidden:  # what it explains is hidden already, unless two codes explain each other
            hidden |= _reach(code, explained, present)
    ending = {f.code for f in causes if f.decisive and f.code not in hidden}
    ended = {code for each in ending for code in _reach(each, explained, present)}
    marked = [
        replace(f, role="consequence", decisive=False)
        if f.role == "cause" and f.code in (ended if f.decisive else hidden)
        else f
        for f in findings
    ]
    return sorted(
        marked,
        key=lambda f: (
            f.state != "active",
            f.severity == "info",
            not f.decisive,
            ROLES.index(f.role),
            SEVERITIES.index(f.severity or "error"),
            CONFIDENCES.index(f.confidence),
            place.get(f.code, len(place)),
        ),
    )


def _reach(code: str, explained: dict[str, set[str]], present: set[str]) -> set[str]:
    """Codes explained by ``code``, directly or over others that are present; never ``code`` itself."""
    seen: set[str] = set()
    waiting = [code]
    while waiting:
        for other in explained.get(waiting.pop(), ()):
            if other not in seen and other != code:
                seen.add(other)
                if other in present:
                    waiting.append(other)
    return seen


def reach_verdict(
    rows: Sequence[CheckRow],
    ordered: Sequence[Finding],
    *,
    scope: str,
    failure: str | None = None,
    stopped: str | None = None,
    elsewhere: str | None = None,
    unseen: str | None = None,
    broken: str | None = None,
    good: str = HEALTHY,
) -> Verdict:
    """Say how it stands.

    Args:
        rows: all checks with their status.
        ordered: findings as `order_findings` gives them.
        scope: words on what was examined, e.g. ``4 ranks on 1 node, gloo, torch 2.13.0``.
        failure: words on how the watched job failed, e.g. ``exit code 1``; None where it did not, or where no
            job was watched. A job that failed is a problem even where nothing says why.
        stopped: words on who ended the watched job, e.g. ``interrupted by the user (SIGINT)``; None where nobody
            did.
        elsewhere: words on what was found on another node, which ended the job; None where that is not so.
        unseen: words on why it cannot be said that all is well: the end of the job, or a file, was not seen; None
            where that is not so.
        broken: words on what of ours failed; None where nothing did. Then nothing else is said with certainty.
        good: what to call it where nothing is wrong.
    """
    looked = sum(row.status in ("pass", "fail") for row in rows)
    real = [f for f in ordered if f.state == "active" and f.severity in ("error", "warning")]
    count = f"{looked} of {len(rows)} checks ran"
    if broken is not None:
        return Verdict("error", broken, None, looked, len(rows))
    if real:
        return Verdict("problems", real[0].message, real[0].code, looked, len(rows))
    if elsewhere is not None:
        return Verdict("problems", f"ended on another node: {elsewhere}", None, looked, len(rows))
    blind = [row for row in rows if row.status in ("unknown", "error") and row.required]
    if failure is not None:
        why = next((f": {row.reason}" for row in rows if row.status == "unknown" and row.reason), "")
        silent = f"the job failed ({failure}) and the root cause is unknown{why}; {count}"
        return Verdict("problems", silent, None, looked, len(rows))
    if stopped is not None and not any(row.status == "error" for row in rows):
        return Verdict(
            "unknown", f"{stopped}: no failure was seen before that; {count}", None, looked, len(rows)
        )
    if not looked or blind:
        why = f": {blind[0].id} is inconclusive ({blind[0].reason})" if blind else ""
        status = (
            "error" if blind and all(row.status == "error" for row in blind) and not looked else "unknown"
        )
        return Verdict(status, f"not enough evidence{why}; {count}", None, looked, len(rows))
    if unseen is not None:
        return Verdict("unknown", f"{unseen}; {count}", None, looked, len(rows))
    return Verdict("healthy", f"{good} · {count} · {scope}", None, looked, len(rows))
