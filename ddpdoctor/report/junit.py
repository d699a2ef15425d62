"""Format ``junit``: checks as test cases, for the test reports of GitLab, Jenkins and others.

There is no standard; written is what the schema of Jenkins' xUnit plugin (junit-10.xsd) allows and what GitLab reads
(https://docs.gitlab.com/ci/testing/unit_test_reports/).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.runner import CheckRow
from ddpdoctor.report.finding_places import describe_line, describe_lines, describe_position, tidy
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.summary import describe_suppressed, families
from ddpdoctor.report.words import clean, clip, count, is_known

TEXT_SHOWN = 8000
"""Characters of one case."""
MESSAGE_SHOWN = 500
"""Characters of the line that GitLab and Jenkins show of a case before it is opened."""
FINDINGS_SHOWN = 2000
"""Nobody reads more of one report."""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no way to hold (section 2.2)."""


class JunitRenderer:
    """Format ``junit``."""

    name = "junit"
    description = "checks as test cases, for GitLab and Jenkins"

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return the XML, ending in a newline: one suite for the verdict, and one for each family of checks.

        A finding of severity warning or error is a failed case, with the text of the finding. A check that could not
        look is skipped, with the reason; that it was needed shows in the case of the verdict, which is green only for
        a healthy report.
        """
        root = ElementTree.Element("testsuites", {"name": f"ddpdoctor {tidy(report.command)}"})
        active = [finding for finding in report.findings if finding.state == "active"]
        found = _assign(active[:FINDINGS_SHOWN], report)
        _add_suite(root, report, "verdict", [_make_verdict(report, len(active) - FINDINGS_SHOWN)])
        for family, rows in families(report.checks).items():
            cases = [case for row in rows for case in _make_cases(row, found.pop(row.id, []), report)]
            _add_suite(root, report, family, cases)
        rest = [finding for findings in found.values() for finding in findings]
        if rest:  # of checks that the report has no row of
            _add_suite(root, report, "findings", _make_findings("", rest, report, "findings"))
        _count(root)
        ElementTree.indent(root)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + _to_text(root) + "\n"


def _to_text(root: ElementTree.Element) -> str:
    return ElementTree.tostring(root, encoding="unicode")


def _assign(findings: Sequence[Finding], report: Report) -> dict[str, list[Finding]]:
    """Return findings by the id of the check that made them; under "" those of no row.

    Several checks see the same code; which of them it was is told by the row's reason, its first finding's message.
    """
    rows: dict[tuple[str, str], list[CheckRow]] = {}
    for row in report.checks:
        for code in row.codes:
            rows.setdefault((code, row.status), []).append(row)
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        own = rows.get((finding.code, "fail"), [])
        if finding.severity == "info":
            own = [
                *(row for status in ("pass", "unknown") for row in rows.get((finding.code, status), [])),
                *own,
            ]
        first = [row for row in own if row.reason == finding.message] or own
        found.setdefault(first[0].id if first else "", []).append(finding)
    return found


def _make_verdict(report: Report, left_out: int) -> ElementTree.Element:
    case = _make_case("verdict", "verdict", report.duration_s)
    status, headline = report.verdict.status, report.verdict.headline
    if status == "problems":
        real = [each for each in report.findings if each.state == "active" and each.severity != "info"]
        text = describe_lines(real[0], report) if real else [tidy(headline)]
        _add(case, "failure", headline, "\n".join(text), report.verdict.code or "problems")
    elif status != "healthy":
        _add(case, "error", headline, headline, status)
    hidden = describe_suppressed(report)
    said = [f"suppressed: {hidden}"] if hidden else []
    if left_out > 0:
        said.append(f"{count(left_out, 'more finding')} in the JSON report")
    _say(case, said)
    return case


def _say(case: ElementTree.Element, lines: Sequence[str]) -> None:
    if lines:
        ElementTree.SubElement(case, "system-out").text = _fit("\n".join(lines), TEXT_SHOWN)


def _make_cases(row: CheckRow, findings: Sequence[Finding], report: Report) -> list[ElementTree.Element]:
    """One case of a check, or one for each of several findings that count."""
    real = [each for each in findings if each.severity != "info"]
    notes = [each for each in findings if each.severity == "info"]
    if len(real) > 1:
        cases = _make_findings(row.id, real, report, row.family)
    else:
        cases = [_make_case(row.id, row.family, row.duration_s)]
        _add_outcome(cases[0], row, real, report)
    _say(cases[0], [line for note in notes for line in describe_lines(note, report)])
    return cases


def _add_outcome(
    case: ElementTree.Element, row: CheckRow, findings: Sequence[Finding], report: Report
) -> None:
    reason = row.reason or ""
    if findings:
        _add_failure(case, findings[0], report)
    elif row.status == "fail":
        _add(case, "failure", reason, reason, "finding")
    elif row.status == "error":
        _add(case, "error", reason, reason, "error")
    elif row.status == "unknown":
        _add(case, "skipped", f"inconclusive: {reason}")
    elif row.status == "skipped":
        _add(case, "skipped", reason)


def _make_findings(
    check: str, findings: Sequence[Finding], report: Report, family: str
) -> list[ElementTree.Element]:
    """A case for each: the name tells the place, so that a finding keeps its history, and of equal ones the number."""
    cases = []
    seen: Counter[str] = Counter()
    for finding in findings:
        where = describe_position(finding.where[0]) if finding.where else ", ".join(finding.nodes[:3])
        name = f"{check or f'{finding.code} {finding.name}'}{f' [{where}]' if where else ''}"
        seen[name] += 1
        case = _make_case(name if seen[name] == 1 else f"{name} ({seen[name]})", family, 0.0)
        _add_failure(case, finding, report)
        cases.append(case)
    return cases


def _add_failure(case: ElementTree.Element, finding: Finding, report: Report) -> None:
    lines = [f"{finding.severity}, {finding.confidence} confidence", *describe_lines(finding, report)]
    if finding.where:
        lines.insert(1, describe_line(finding.where[0], finding, report))
    lines.append(f"more: ddpdoctor explain {tidy(finding.code)}")
    _add(case, "failure", f"{finding.code} {finding.name}: {finding.message}", "\n".join(lines), finding.code)


def _make_case(name: str, family: str, seconds: float) -> ElementTree.Element:
    shown = {"name": _fit(name, MESSAGE_SHOWN), "classname": f"ddpdoctor.{_fit(family, MESSAGE_SHOWN)}"}
    return ElementTree.Element("testcase", {**shown, "time": _seconds(seconds)})


def _add(
    case: ElementTree.Element, kind: str, message: str, text: str | None = None, of: str | None = None
) -> None:
    attributes = {"message": _fit(tidy(message), MESSAGE_SHOWN)}
    if of is not None:
        attributes["type"] = _fit(tidy(of), MESSAGE_SHOWN)
    ElementTree.SubElement(case, kind, attributes).text = None if text is None else _fit(text, TEXT_SHOWN)


def _add_suite(
    root: ElementTree.Element, report: Report, name: str, cases: Sequence[ElementTree.Element]
) -> None:
    attributes = {
        "name": _fit(tidy(name), MESSAGE_SHOWN),
        "timestamp": _fit(report.started_at.split(".")[0], 40),
    }
    if len(report.world.nodes) == 1 and report.world.nodes[0].host:
        attributes["hostname"] = _fit(tidy(report.world.nodes[0].host), MESSAGE_SHOWN)
    ElementTree.SubElement(root, "testsuite", attributes).extend(cases)


def _count(root: ElementTree.Element) -> None:
    totals = {"tests": 0, "failures": 0, "errors": 0}
    for suite in root:
        counts = {"tests": len(suite)}
        counts |= {f"{kind}s": len(suite.findall(f"testcase/{kind}")) for kind in ("failure", "error")}
        skipped = len(suite.findall("testcase/skipped"))
        seconds = sum(float(case.get("time", "0")) for case in suite)
        suite.attrib |= {key: str(number) for key, number in counts.items()}
        suite.attrib |= {"skipped": str(skipped), "time": _seconds(seconds)}
        totals = {key: totals[key] + counts[key] for key in totals}
    root.attrib |= {key: str(number) for key, number in totals.items()}


def _seconds(seconds: float | None) -> str:
    return f"{max(seconds, 0.0):.3f}" if is_known(seconds) else "0.000"


def _fit(text: str, limit: int) -> str:
    return clip(_NOT_XML.sub("\ufffd", clean(text)), limit)
