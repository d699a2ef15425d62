"""Format ``sarif``: findings with their places for code scanning and editors.

SARIF 2.1.0 (OASIS, errata 01), https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/; what GitHub makes of it,
https://docs.github.com/en/code-security/code-scanning/integrating-with-code-scanning/sarif-support-for-code-scanning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from ddpdoctor.judge.catalogue import CodePage
from ddpdoctor.judge.finding import Finding, Where
from ddpdoctor.judge.fingerprint import number_fingerprints
from ddpdoctor.judge.suppression import Remark
from ddpdoctor.report.finding_places import (
    TEXT_SHOWN,
    describe_lines,
    describe_position,
    describe_who,
    name_file,
    tidy,
)
from ddpdoctor.report.marks import write_page
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.summary import count_reasons, describe_suppressed
from ddpdoctor.report.words import clean, clip, format_ranks

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}
PRECISIONS = {"high": "very-high", "medium": "medium", "low": "low"}
RESULTS_SHOWN = 5000
"""Results that GitHub's code scanning shows of one run."""
PLACES_SHOWN = 100
"""Places of one result; GitHub takes 1,000."""
HOSTS_SHOWN = 100
FINGERPRINT = "ddpdoctorFinding/v1"
ROOT = "%SRCROOT%"
STEPS = {"caller": 0, "condition": 1}
"""Roles of places in the order in which a rank comes by them; all others are where it ends."""


class SarifRenderer:
    """Format ``sarif``."""

    name = "sarif"
    description = "findings with source locations for code scanning (SARIF 2.1.0)"

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return the log as JSON text that can be written as UTF-8, ending in a newline."""
        log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [make_run(report, options)]}
        return json.dumps(log, indent=1, ensure_ascii=options.ascii, allow_nan=False) + "\n"


def make_run(report: Report, options: RenderOptions) -> dict[str, Any]:
    """Return the one run of a log."""
    # Numbered over all, so that a fingerprint does not depend on what is shown. What the user has told not to count is
    # left out: GitHub does not read `suppressions` and would open an alert for each.
    numbered = [
        each
        for each in zip(report.findings, number_fingerprints(report.findings), strict=True)
        if each[0].state == "active"
    ]
    shown = numbered[:RESULTS_SHOWN]
    codes = list(dict.fromkeys(finding.code for finding, _ in shown))
    pages = options.pages or {}
    return {
        "tool": {
            "driver": {
                "name": "ddpdoctor",
                "version": tidy(report.version),
                "rules": [_make_rule(code, shown, pages.get(code)) for code in codes],
            }
        },
        "automationDetails": {"id": f"ddpdoctor/{tidy(report.command)}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [_make_invocation(report, len(numbered) - len(shown), options)],
        "results": [
            _make_result(finding, print_, codes.index(finding.code), report, options)
            for finding, print_ in shown
        ],
    }


def _make_rule(code: str, shown: Sequence[tuple[Finding, str]], page: CodePage | None) -> dict[str, Any]:
    """What the page of a code says; of a code without page, what its findings say."""
    first = next(finding for finding, _ in shown if finding.code == code)
    severity = page.severity if page is not None else first.severity or "error"
    rule: dict[str, Any] = {
        "id": tidy(code),
        "name": "".join(word.capitalize() for word in re.split(r"\W+", first.name)) or tidy(code),
        "shortDescription": {"text": tidy(page.title if page is not None else first.name) or tidy(code)},
        "defaultConfiguration": {"level": LEVELS.get(severity, "error")},
        "properties": {
            "tags": ["distributed", "pytorch"],
            "precision": PRECISIONS.get(first.confidence, "medium"),
            "problem.severity": {"info": "recommendation"}.get(severity, severity),
        },
    }
    if page is None:  # GitHub wants both all the same
        rule["fullDescription"] = rule["shortDescription"]
        rule["help"] = {"text": f"ddpdoctor explain {tidy(code)}"}
    else:
        rule["fullDescription"] = {"text": _message(page.sections().get("") or page.title)}
        rule["help"] = {"text": clean(page.text), "markdown": write_page(page)}
    return rule


def _make_invocation(report: Report, left_out: int, options: RenderOptions) -> dict[str, Any]:
    """How the command ended; checks that could not look are said here, so that no result is not taken for health."""
    notes = []
    for status, level, words in (
        ("error", "error", "could not run"),
        ("unknown", "warning", "are inconclusive"),
    ):
        rows = [row for row in report.checks if row.status == status]
        if rows:
            notes.append(
                (level, f"{len(rows)} of {len(report.checks)} checks {words}: {count_reasons(rows)}")
            )
    hidden = describe_suppressed(report)
    if hidden:
        notes.append(("note", f"findings that are suppressed: {hidden}"))
    if left_out:
        notes.append(("warning", f"{left_out} findings were omitted; the JSON report has all"))
    return {
        "executionSuccessful": report.verdict.status in ("healthy", "problems"),
        "commandLine": " ".join(tidy(word) for word in report.invocation),
        "arguments": [tidy(word) for word in report.invocation[1:]],
        **_make_times(report),
        "toolExecutionNotifications": [
            {"level": level, "message": {"text": _message(text)}} for level, text in notes
        ],
        "toolConfigurationNotifications": [
            {
                "level": "note",
                "message": {"text": _message(remark.text)},
                "locations": [_make_remark_place(remark, options)],
            }
            for remark in report.remarks[:PLACES_SHOWN]
        ],
        "properties": {"verdict": report.verdict.status, "headline": tidy(report.verdict.headline)},
    }


def _make_remark_place(remark: Remark, options: RenderOptions) -> dict[str, Any]:
    line = 1 if remark.line is None or remark.cell is not None else max(1, remark.line)
    artifact = _make_artifact(remark.file, options)
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line}}}


def _make_times(report: Report) -> dict[str, str]:
    try:
        started = datetime.strptime(report.started_at, "%Y-%m-%dT%H:%M:%S.%fZ")
        ended = started + timedelta(seconds=report.duration_s)
    except (ValueError, TypeError, OverflowError):  # somebody else wrote the report
        return {}
    return {"startTimeUtc": report.started_at, "endTimeUtc": ended.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"}


def _make_result(
    finding: Finding, fingerprint: str, rule: int, report: Report, options: RenderOptions
) -> dict[str, Any]:
    places = finding.where[:PLACES_SHOWN]
    result: dict[str, Any] = {
        "ruleId": tidy(finding.code),
        "ruleIndex": rule,
        "level": LEVELS.get(finding.severity or "error", "error"),
        "message": {"text": _message("\n".join(describe_lines(finding, report, places=False)))},
        "locations": [
            _make_location(places[0], finding, report, options) if places else _make_stand_in(finding, report)
        ],
        "partialFingerprints": {FINGERPRINT: fingerprint},
        "properties": _make_properties(finding),
    }
    if len(places) > 1:
        result["relatedLocations"] = [
            {"id": number, **_make_location(place, finding, report, options)}
            for number, place in enumerate(places[1:], start=1)
        ]
        result["codeFlows"] = [{"threadFlows": _make_flows(places, finding, report, options)}]
    return result


def _make_properties(finding: Finding) -> dict[str, Any]:
    found: dict[str, Any] = {
        "confidence": finding.confidence,
        "role": finding.role,
        "ranks": str(finding.ranks),
        "victims": str(finding.victims),
        "hosts": [tidy(host) for host in finding.nodes[:HOSTS_SHOWN]],
        "hostCount": len(finding.nodes),
    }
    return {key: value for key, value in found.items() if value}


def _make_location(place: Where, finding: Finding, report: Report, options: RenderOptions) -> dict[str, Any]:
    """One place. That of a cell of a notebook is told in words: its lines are not those of the file."""
    region: dict[str, Any] = {"startLine": 1}
    if place.line >= 1 and place.cell is None:
        region["startLine"] = place.line
        if place.column is not None and place.column >= 1:
            region["startColumn"] = place.column
        if place.source:
            region["snippet"] = {"text": clip(clean(place.source), TEXT_SHOWN)}
    physical = {"artifactLocation": _make_artifact(place.file, options), "region": region}
    words = describe_who(place, finding, report)
    if place.cell is not None or not words:
        words = f"{words} {describe_position(place)}".strip()
    location: dict[str, Any] = {"physicalLocation": physical, "message": {"text": _message(words)}}
    if place.function:
        location["logicalLocations"] = [{"name": tidy(place.function), "kind": "function"}]
    return location


def _make_artifact(file: str, options: RenderOptions) -> dict[str, str]:
    name = name_file(file, options)
    path = quote(name.encode("utf-8", "backslashreplace"), safe="/")
    if name.startswith("/"):
        return {"uri": f"file://{path}"}
    return {"uri": path or ".", "uriBaseId": ROOT}


def _make_stand_in(finding: Finding, report: Report) -> dict[str, Any]:
    """Where a finding about a machine or a network is: GitHub refuses results without a file and a line."""
    hosts = [{"name": tidy(host), "kind": "resource"} for host in finding.nodes[:HOSTS_SHOWN]]
    ranks = format_ranks(finding.ranks, report.world.size) if finding.ranks else ""
    if ranks and not hosts:
        hosts = [{"name": ranks, "kind": "resource"}]
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {
                "uri": f"ddpdoctor/{quote(report.command.encode('utf-8', 'backslashreplace'), safe='')}",
                "description": {"text": "no file: this was found at run time, not in source"},
            },
            "region": {"startLine": 1},
        }
    }
    return {**location, "logicalLocations": hosts} if hosts else location


def _make_flows(
    places: Sequence[Where], finding: Finding, report: Report, options: RenderOptions
) -> list[dict[str, Any]]:
    """One flow for each set of ranks that took one way: callers from the outermost, tests, and where it ended.

    Callers and tests without ranks belong to what stands before them.
    """
    groups: list[list[Where]] = []
    of: dict[str, list[Where]] = {}
    for place in places:
        key = f"{place.ranks}@{place.host}"
        group = of.get(key)
        if group is None and groups and place.role in STEPS and not place.ranks:
            group = groups[-1]
        if group is None:
            group = of[key] = []
            groups.append(group)
        group.append(place)
    return [
        {
            **({"id": format_ranks(group[0].ranks, report.world.size)} if group[0].ranks else {}),
            "locations": [
                {
                    "location": _make_location(place, finding, report, options),
                    "importance": "essential" if place.role not in STEPS else "important",
                }
                for place in _sort_steps(group)
            ],
        }
        for group in groups
    ]


def _sort_steps(group: Sequence[Where]) -> list[Where]:
    callers = [place for place in group if place.role == "caller"]
    others = [place for place in group if place.role != "caller"]
    return [*reversed(callers), *sorted(others, key=lambda place: STEPS.get(place.role, 2))]


def _message(text: str) -> str:
    """Return a text that holds neither placeholders nor links for a viewer (sections 3.11.5 and 3.11.6).

    Braces are doubled only where a number stands between them: viewers that know of no placeholders show them doubled.
    """
    return re.sub(r"\{(\d+)\}", r"{{\1}}", clean(text)).replace("](", "] (") or " "
