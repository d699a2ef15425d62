"""Format ``markdown``: to paste into an issue, or for GitHub's step summary; all but the verdict is folded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ddpdoctor.judge.finding import EvidenceItem, Finding, Fix
from ddpdoctor.report.finding_places import describe_position, describe_who, tidy
from ddpdoctor.report.listing import count_findings
from ddpdoctor.report.marks import code, escape, fence, fold, table
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.summary import (
    count_reasons,
    describe_job,
    describe_read,
    describe_remark,
    describe_standing,
    describe_suppressed,
    families,
    list_notable,
    read_good,
    split_findings,
)
from ddpdoctor.report.words import clip, count, fold_hosts, format_ranks, format_seconds

LENGTH = 60_000
"""Characters of the whole: an issue or comment of GitHub holds 65,536, a step summary 1 MiB."""
SMALLEST = 200
"""Characters that the smallest finding takes."""
MISSES = 20
"""Findings that did not fit after which no more are tried."""
PLACES_SHOWN = 20
ITEMS_SHOWN = 20
"""Observations of one finding."""
REASONS_SHOWN = 8
CODE_SHOWN = 2000
"""Characters of one block."""
STATUSES = {
    "pass": "passed",
    "fail": "failed",
    "unknown": "inconclusive",
    "error": "could not run",
    "skipped": "skipped",
}


class MarkdownRenderer:
    """Format ``markdown``."""

    name = "markdown"
    description = "for an issue or a step summary"

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return GitHub Flavored Markdown of at most some 60,000 characters."""
        scrub = options.scrub or (lambda text: text)
        shown = scrub_report(report, scrub)
        problems, follows, notes = split_findings(shown.findings)
        listed = [*problems, *follows, *notes]
        end = [_write_suppressed(shown, scrub), _write_checks(shown), _write_world(shown), _write_end(shown)]
        parts = [_write_head(shown, problems)]
        room = LENGTH - sum(map(len, (*parts, *end)))
        told = misses = 0
        for number, each in enumerate(listed):
            if room < SMALLEST or misses == MISSES:
                break
            finding = scrub_finding(each, scrub)
            text = _write_first(finding, shown) if number == 0 and problems else _write_other(finding, shown)
            if len(text) <= room:
                told += 1
                parts.append(text)
                room -= len(text)
            else:
                misses += 1
        if told < len(listed):
            left = count(len(listed) - told, "more finding")
            parts.append(f"{left} did not fit here; the JSON report has all.\n")
        return "\n".join(f"{part.strip()}\n" for part in (*parts, *end) if part)


def scrub_report(report: Report, scrub: Callable[[str], str]) -> Report:
    """Return the report without secrets in what is shown of it, but for its findings.

    Reports are scrubbed when they are made, but not what plugins and other versions put in.
    """
    return replace(
        report,
        verdict=replace(report.verdict, headline=scrub(report.verdict.headline)),
        checks=tuple(replace(row, reason=row.reason and scrub(row.reason)) for row in report.checks),
        invocation=tuple(map(scrub, report.invocation)),
    )


def scrub_finding(finding: Finding, scrub: Callable[[str], str]) -> Finding:
    """Return what is shown of a finding, without secrets."""
    return replace(
        finding,
        message=scrub(finding.message),
        where=tuple(
            replace(each, file=scrub(each.file), source=each.source and scrub(each.source))
            for each in finding.where[: PLACES_SHOWN + 1]
        ),
        evidence=tuple(
            replace(each, text=scrub(clip(each.text, CODE_SHOWN)))
            for each in finding.evidence[: ITEMS_SHOWN + 1]
        ),
        fix=tuple(
            Fix(scrub(each.text), each.command and scrub(each.command), each.code and scrub(each.code))
            for each in finding.fix
        ),
    )


def _write_head(report: Report, problems: Sequence[Finding]) -> str:
    """The title, and where no finding tells the verdict its sentence, which has the number of checks in it."""
    facts = [f"interrupted by {report.interrupted}"] if report.interrupted else []
    if problems and report.command == "lint":
        facts.append(describe_read(report.evidence.sources))
    elif problems:
        facts.append(f"{problems[0].confidence} confidence")
    if problems:
        facts.append(f"{report.verdict.looked} of {report.verdict.of} checks ran")
    facts.append(format_seconds(report.duration_s))
    title, said = _name_verdict(report, problems)
    words = " · ".join([said, *facts] if said else facts)
    lines = "".join(f"* {escape(line)}\n" for line in list_notable(report))
    return f"## ddpdoctor {escape(title, inside=True)}\n\n{escape(words)}\n" + (f"\n{lines}" if lines else "")


def _name_verdict(report: Report, problems: Sequence[Finding]) -> tuple[str, str]:
    status, headline = report.verdict.status, report.verdict.headline
    if problems:
        mark = "✖" if any(each.severity == "error" for each in problems) else "!"
        lint = report.command == "lint"
        return f"{mark} {count_findings(report) if lint else f'{problems[0].code} {problems[0].name}'}", ""
    if (standing := describe_standing(report)) is not None:
        return "? hang, root cause not determined", standing
    good = read_good(report)
    titles = {"healthy": f"✓ {good}", "problems": "✖ the job failed", "error": "? ddpdoctor failed"}
    return titles.get(status, "? inconclusive"), headline.removeprefix(f"{good} · ")


def _write_first(finding: Finding, report: Report) -> str:
    """The root cause: open, but for what was seen."""
    code_of = f"{finding.code} {finding.name}: " if report.command == "lint" else ""
    parts = [f"**{escape(code_of + finding.message)}**\n", *_write_body(finding, report)]
    if finding.evidence:
        parts.append(fold("Evidence", _write_evidence(finding.evidence, report)))
    return "\n".join(parts)


def _write_other(finding: Finding, report: Report) -> str:
    kind = "follows" if finding.role == "consequence" else finding.severity
    title = f"{kind}: {finding.code} {finding.name}: {clip(tidy(finding.message), 160)}"
    parts = [f"{escape(finding.message)}\n", *_write_body(finding, report)]
    if finding.evidence:
        parts.append(f"Evidence:\n\n{_write_evidence(finding.evidence, report)}")
    return fold(title, "\n".join(parts))


def _write_body(finding: Finding, report: Report) -> list[str]:
    parts = []
    if finding.where:
        parts.append(_write_places(finding, report))
    if finding.fix:
        parts.append("Fix:\n\n" + "".join(map(_write_fix, finding.fix)).rstrip() + "\n")
    facts = []
    if finding.nodes:
        facts.append(f"on {fold_hosts(finding.nodes)}")
    if finding.victims:
        facts.append(f"affected ranks (not the cause): {format_ranks(finding.victims, report.world.size)}")
    if facts:
        parts.append(f"{escape('; '.join(facts))}\n")
    return parts


def _write_places(finding: Finding, report: Report) -> str:
    places = finding.where
    rows = [
        [
            escape(describe_who(place, finding, report), inside=True),
            code(describe_position(place), table=True),
            code(place.function or "", table=True),
            code(clip((place.source or "").strip(), 200), table=True),
        ]
        for place in places[:PLACES_SHOWN]
    ]
    more = "\n… and more places\n" if len(places) > PLACES_SHOWN else ""
    return table(["who", "where", "function", "source"], rows) + more


def _write_fix(fix: Fix) -> str:
    text = f"- {escape(fix.text)}\n"
    for block, language in ((fix.command, "sh"), (fix.code, "python")):
        if block:
            text += "\n" + fence(clip(block, CODE_SHOWN), indent=2, language=language)
    return text + "\n" if fix.command or fix.code else text


def _write_evidence(items: Sequence[EvidenceItem], report: Report) -> str:
    lines = []
    for item in items[:ITEMS_SHOWN]:
        who = f"{escape(format_ranks(item.ranks, report.world.size))}: " if item.ranks else ""
        origin = ""
        if item.source is not None:
            file, line = item.source
            origin = f" ({code(file if line is None else f'{file}:{line}')})"
        text = clip(item.text.strip(), CODE_SHOWN)
        if "\n" in text:
            lines.append(f"- {who}{escape(item.kind)}{origin}\n\n{fence(text, indent=2)}\n")
        else:
            lines.append(f"- {who}{escape(text)}{origin}\n")
    more = "- … and more\n" if len(items) > ITEMS_SHOWN else ""
    return "".join(lines) + more


def _write_suppressed(report: Report, scrub: Callable[[str], str]) -> str:
    """What the user has told not to count, and what hides nothing although it says so."""
    words = describe_suppressed(report)
    text = f"Suppressed: {words}.\n" if words else ""
    if report.remarks:
        lines = [
            f"- {code(scrub(describe_remark(remark)))}: {escape(scrub(remark.text), inside=True)}\n"
            for remark in report.remarks[:ITEMS_SHOWN]
        ]
        more = "- … and more\n" if len(report.remarks) > ITEMS_SHOWN else ""
        text += "\n" * bool(text) + fold(count(len(report.remarks), "remark"), "".join(lines) + more)
    return text


def _write_checks(report: Report) -> str:
    """How many of each family ended how, and why some could not look."""
    if not report.checks:
        return ""
    present = {
        key: words for key, words in STATUSES.items() if any(row.status == key for row in report.checks)
    }
    rows = []
    for family, own in families(report.checks).items():
        numbers = [sum(row.status == key for row in own) for key in present]
        rows.append([escape(family, inside=True), *(str(number or "") for number in numbers)])
    body = table(["family", *present.values()], rows)
    for status in ("error", "unknown", "skipped"):
        blind = [row for row in report.checks if row.status == status]
        if blind:
            reasons = clip(count_reasons(blind, most=REASONS_SHOWN, hint=""), CODE_SHOWN)
            body += f"\n{len(blind)} {STATUSES[status]}: {escape(reasons)}\n"
    totals = [f"{sum(row.status == key for row in report.checks)} {words}" for key, words in present.items()]
    return fold(f"Checks: {', '.join(totals)}", body)


def _write_world(report: Report) -> str:
    world = report.world
    hosts = [node.host for node in world.nodes]
    facts = {
        "ranks": str(world.size) if world.size else None,
        "nodes": f"{len(hosts)}: {fold_hosts(hosts)}" if hosts else None,
        "backend": world.backend if world.backend != "none" else None,
        "torch": world.torch,
        "python": world.python,
        "launcher": world.launcher,
        "job": describe_job(report.job) if report.job is not None else None,
        "began": report.started_at,
    }
    lines = [f"- command: {code(' '.join(report.invocation))}\n"] if report.invocation else []
    lines += [f"- {name}: {escape(value, inside=True)}\n" for name, value in facts.items() if value]
    return fold("Environment", "".join(lines))


def _write_end(report: Report) -> str:
    explain = f"See `ddpdoctor explain {report.verdict.code}`. " if _is_code(report.verdict.code) else ""
    return f"{explain}Generated by ddpdoctor {escape(report.version, inside=True)}.\n"


def _is_code(text: str | None) -> bool:
    return bool(text) and (text or "").replace("-", "").replace("_", "").isalnum()
