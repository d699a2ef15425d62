"""Format ``github``: workflow commands, which GitHub shows beside the lines of a pull request.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions; the escapes are those of its own
toolkit (actions/toolkit, packages/core/src/command.ts).
"""

from __future__ import annotations

from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.suppression import Remark
from ddpdoctor.report.finding_places import describe_lines, name_file, tidy
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.summary import describe_standing, describe_suppressed
from ddpdoctor.report.words import clip, count

LEVELS = {"error": "error", "warning": "warning", "info": "notice"}
SHOWN = 50
"""Annotations of one job that GitHub keeps, 10 of each level for a step; the log has what is more."""
TEXT_SHOWN = 4000
"""Characters of one annotation: about fifty lines."""


class GithubRenderer:
    """Format ``github``."""

    name = "github"
    description = "annotations of a GitHub workflow"

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return one command a line, the root cause first, and a line with the counts.

        A verdict that no finding tells is an annotation of its own: nobody shall take silence for health.
        """
        found = [each for each in report.findings if each.state == "active"]
        lines = [_annotate(finding, report, options) for finding in found[:SHOWN]]
        if not any(each.severity != "info" for each in found):
            lines.insert(0, _say_verdict(report))
        lines += [_remark(remark, options) for remark in report.remarks[: max(0, SHOWN - len(lines))]]
        more = f", {SHOWN} shown" if len(found) > SHOWN else ""
        verdict = report.verdict
        looked = f"{verdict.looked} of {verdict.of} checks ran"
        hidden = describe_suppressed(report)
        counted = f"{count(len(found), 'finding')}{more}{f', suppressed {hidden}' if hidden else ''}"
        lines.append(f"ddpdoctor: {tidy(counted)}; {looked}")
        return "\n".join(lines) + "\n"


def _annotate(finding: Finding, report: Report, options: RenderOptions) -> str:
    """A consequence is a notice, so that the cause is what is seen."""
    follows = finding.role == "consequence"
    level = "notice" if follows else LEVELS.get(finding.severity or "error", "error")
    properties: dict[str, str] = {}
    lines = describe_lines(finding, report)
    place = finding.where[0] if finding.where else None
    if place is not None:
        properties["file"] = name_file(place.file, options)
        if place.cell is not None:
            lines.insert(1, f"cell {place.cell}, line {place.line}")
        elif place.line >= 1:
            properties["line"] = str(place.line)
            if place.column is not None and place.column >= 1:
                properties["col"] = str(place.column)
    properties["title"] = f"{finding.code} {finding.name}{' (a consequence)' if follows else ''}"
    lines.append(f"more: ddpdoctor explain {tidy(finding.code)}")
    return write_command(level, properties, clip("\n".join(lines), TEXT_SHOWN))


def _remark(remark: Remark, options: RenderOptions) -> str:
    """On what the user has told not to count."""
    properties = {"file": name_file(remark.file, options), "title": "ddpdoctor"}
    if remark.line is not None and remark.cell is None:
        properties["line"] = str(remark.line)
    cell = f"cell {remark.cell}: " if remark.cell is not None else ""
    return write_command("notice", properties, tidy(f"{cell}{remark.text}"))


def _say_verdict(report: Report) -> str:
    levels = {"healthy": "notice", "problems": "error", "error": "error"}
    words = {"healthy": "ddpdoctor", "problems": "ddpdoctor found problems", "error": "ddpdoctor failed"}
    status = report.verdict.status
    if (standing := describe_standing(report)) is not None:
        return write_command(
            "warning", {"title": "ddpdoctor: hang, root cause not determined"}, tidy(standing)
        )
    title = words.get(status, "ddpdoctor: inconclusive")
    return write_command(levels.get(status, "warning"), {"title": title}, tidy(report.verdict.headline))


def write_command(name: str, properties: dict[str, str], message: str) -> str:
    """Return ``::name key=value,…::message`` on one line, whatever the values hold."""
    given = ",".join(f"{key}={_escape_property(tidy(value))}" for key, value in properties.items())
    return f"::{name} {given}::{_escape(message)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
