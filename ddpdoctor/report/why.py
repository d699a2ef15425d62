"""``ddpdoctor report FILE.json --why``: from what was seen to the verdict, and what else was looked at.

Nothing is judged again: the report has all observations, the page of the code has the rule, and the rows of checks have
what was looked at beside it, found or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.judge.catalogue import CodePage
from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.runner import CheckRow
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.summary import describe_item
from ddpdoctor.text.paper import Paper

RULE = "How it decides"
"""Section of a page that says what the verdict follows from."""
CONFIDENCE = {
    "high": "high: nothing else that was seen explains these observations",
    "medium": "medium: another cause could show the same observations",
    "low": "low: the observations allow other causes that are as likely",
}
LABEL = 12
REASONS = 8
"""Different reasons why checks could not run that are listed."""


def explain_findings(report: Report, options: RenderOptions, code: str | None = None) -> str:
    """Return why the report says what it says.

    Args:
        report: any.
        options: with the pages of codes.
        code: only findings of this code; None for all that are active.

    Raises:
        LookupError: the report has no such finding.
    """
    chosen = [each for each in report.findings if each.state == "active" and code in (None, each.code)]
    if code is not None and not chosen:
        raise LookupError(code)
    paper = Paper(width=options.width, color=options.color, ascii=options.ascii)
    if not chosen:
        paper.put("The report has no findings.", style="bold")
    for finding in chosen:
        paper.gap()
        _put_finding(paper, finding, report, options.pages or {})
    _put_looked(paper, report, {finding.code for finding in chosen}, options.pages or {})
    return paper.text()


def _put_finding(paper: Paper, finding: Finding, report: Report, pages: dict[str, CodePage]) -> None:
    paper.put(f"{finding.code} {finding.name}", style="bold")
    paper.put(finding.message, indent=2)
    paper.gap()
    for number, item in enumerate(finding.evidence):
        _put(paper, "" if number else "observed", describe_item(item, report.world.size))
    if not finding.evidence:
        _put(paper, "observed", "only what the sentence above says")
    page = pages.get(finding.code)
    rule = page.sections().get(RULE) if page is not None else None
    for number, block in enumerate((rule or "the rule is a plugin's, which has no page on it").split("\n\n")):
        _put(paper, "" if number else "rule", block)
    _put(paper, "confidence", CONFIDENCE.get(finding.confidence, finding.confidence))
    others = [each for each in report.findings if each is not finding and each.state == "active"]
    follows = [f"{each.code} {each.name}" for each in others if each.role == "consequence"]
    beside = [f"{each.code} {each.name}" for each in others if each.role == "cause"]
    if finding.role == "cause" and follows:
        _put(paper, "explains", ", ".join(dict.fromkeys(follows)))
    if beside:
        _put(paper, "also found", ", ".join(dict.fromkeys(beside)))


def _put_looked(paper: Paper, report: Report, codes: Iterable[str], pages: dict[str, CodePage]) -> None:
    """Put what was ruled out, and what could not be looked at: these are what would have changed the verdict."""
    found = set(codes)
    out = sorted({code for row in report.checks if row.status == "pass" for code in row.codes} - found)
    blind = [row for row in report.checks if row.status in ("unknown", "error")]
    absent = [row for row in report.checks if row.status == "skipped"]
    paper.gap()
    paper.put("What else was checked", style="bold")
    _put(paper, "ruled out", ", ".join(_name(code, pages) for code in out) if out else "nothing")
    for number, text in enumerate(_group(blind, pages)):
        _put(paper, "" if number else "not decided", text)
    for number, text in enumerate(_group(absent, pages)[:REASONS]):
        _put(paper, "" if number else "not checked", text)


def _group(rows: Sequence[CheckRow], pages: dict[str, CodePage]) -> list[str]:
    """Return each reason with the codes that were not looked for because of it, the most first."""
    groups: dict[str, dict[str, None]] = {}
    for row in rows:
        groups.setdefault(row.reason or "no reason was given", {}).update(dict.fromkeys(row.codes))
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [f"{reason}: {', '.join(_name(code, pages) for code in codes)}" for reason, codes in ordered]


def _name(code: str, pages: dict[str, CodePage]) -> str:
    return f"{pages[code].name} {code}" if code in pages else code


def _put(paper: Paper, label: str, text: str) -> None:
    paper.put(text, label=label, indent=2, hang=2 + LABEL, label_style="dim")
