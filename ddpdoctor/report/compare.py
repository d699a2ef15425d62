"""Two reports side by side: what is gone, what is new, and what else is different."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.judge.finding import Finding
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.summary import describe_job
from ddpdoctor.report.words import format_bandwidth, format_seconds, is_known
from ddpdoctor.text.paper import Paper
from ddpdoctor.text.shell import quote_words

LABEL = 12
"""Columns of the words before a row."""
CHANGED = 1.1
"""Ratio of two bandwidths from which on they are shown."""


def compare_reports(before: Report, after: Report, names: tuple[str, str], options: RenderOptions) -> str:
    """Return the text for a terminal.

    Args:
        before: the one that the other is compared with.
        after: the other one.
        names: how each is called, e.g. the names of their files.
        options: width and colours.
    """
    paper = Paper(width=options.width, color=options.color, ascii=options.ascii)
    gone = _without(before.findings, after.findings)
    new = _without(after.findings, before.findings)
    _put_answer(paper, after, gone, new)
    paper.gap()
    for name, report in zip(names, (before, after), strict=True):
        paper.put(report.verdict.headline, label=f"{name}:", indent=2, hang=6)
    paper.gap()
    for word, findings, style in (("gone", gone, "green"), ("new", new, "red")):
        for each in findings:
            paper.put(
                f"{each.code} {each.name}: {each.message}",
                label=word,
                indent=2,
                hang=LABEL,
                label_style=style,
            )
    for each in after.findings:
        if each not in new and each.state == "active":
            paper.put(f"{each.code} {each.name}", label="in both", indent=2, hang=LABEL, label_style="yellow")
    paper.gap()
    for label, one, other in _list_differences(before, after):
        paper.put(f"{one} → {other}", label=label, indent=2, hang=LABEL + 12)
    paper.gap()
    for line in _list_bandwidths(before, after):
        paper.put(line, label="bandwidth", indent=2, hang=LABEL)
    return paper.text()


def _put_answer(paper: Paper, after: Report, gone: Sequence[Finding], new: Sequence[Finding]) -> None:
    if new:
        word, style = f"{len(new)} new", "red"
    elif gone:
        word, style = "nothing new", "green"
    else:
        word, style = "no finding was resolved or is new", None
    parts = [f"{len(gone)} resolved"] if gone else []
    paper.put_parts(f"ddpdoctor compared · {word}", [*parts, after.verdict.status], hang=12, style=style)


def _identify(finding: Finding) -> tuple[object, ...]:
    """What makes a finding of one run that of another: code, culprits and their place; a line may have moved."""
    place = finding.where[0] if finding.where else None
    return finding.code, finding.ranks, place.file if place else None, place.function if place else None


def _without(findings: Sequence[Finding], others: Sequence[Finding]) -> list[Finding]:
    known = {_identify(each) for each in others if each.state == "active"}
    return [each for each in findings if each.state == "active" and _identify(each) not in known]


def _list_differences(before: Report, after: Report) -> Iterator[tuple[str, str, str]]:
    """Yield what differs of the two runs themselves: label and both values."""
    now = _describe_run(after)
    for label, one in _describe_run(before).items():
        if one != now[label]:
            yield label, one or "unknown", now[label] or "unknown"
    yield "took", format_seconds(before.duration_s), format_seconds(after.duration_s)
    statuses = {row.id: row.status for row in before.checks}
    for row in after.checks:
        known = statuses.get(row.id, "absent")
        if known != row.status and "fail" in (known, row.status):
            yield row.id, known, row.status


def _describe_run(report: Report) -> dict[str, str | None]:
    world = report.world
    return {
        "status": report.verdict.status,
        "job": describe_job(report.job) if report.job is not None else "none was watched",
        "command": quote_words(report.invocation),
        "ranks": str(world.size),
        "nodes": str(len(world.nodes)),
        "backend": world.backend,
        "torch": world.torch,
        "python": world.python,
        "launcher": world.launcher,
        "steps": _describe_steps(report),
    }


def _describe_steps(report: Report) -> str:
    """Return how many steps each optimizer made, where that was seen."""
    made = [
        share.digest
        for node in report.evidence.training
        for setup in node.optimizers
        for share in setup.steps
    ]
    return ", ".join(dict.fromkeys(made)) or "not seen"


def _list_bandwidths(before: Report, after: Report) -> Iterator[str]:
    """Yield for each operation and backend the best bus bandwidth of both, where it has changed."""
    one, other = _find_best(before), _find_best(after)
    for key in (each for each in one if each in other):
        rate, now = one[key], other[key]
        if max(now / rate, rate / now) >= CHANGED:
            both = f"{format_bandwidth(rate)} → {format_bandwidth(now)}"
            yield f"{' '.join(key)}: {both} ({now / rate:.2f} times)"


def _find_best(report: Report) -> dict[tuple[str, str], float]:
    best: dict[tuple[str, str], float] = {}
    for row in report.evidence.bandwidth:
        if is_known(row.busbw) and row.busbw > 0:
            key = row.op, row.backend
            best[key] = max(best.get(key, 0.0), row.busbw)
    return best
