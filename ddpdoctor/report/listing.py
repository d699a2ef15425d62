"""Findings in source, for the terminal: each with its lines, the test that decides and the call that it decides on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpdoctor.judge.finding import Finding, Where
from ddpdoctor.report.model import Report
from ddpdoctor.report.words import count
from ddpdoctor.text.characters import clip
from ddpdoctor.text.paper import Paper

INDENT = 3
LABEL = 6
"""Columns of the words seen and fix, with the gap after them."""
LEAST_SOURCE = 24
"""Columns that source keeps before the words beside it are left out."""
STYLES = {"error": "red", "warning": "yellow", "info": "cyan"}
SEVERITIES = ("error", "warning", "info")
SIDES = {
    "if": "only some ranks enter",
    "else": "only some ranks enter",
    "return": "some ranks return",
    "break": "some ranks leave the loop",
    "continue": "some ranks skip the rest",
    "exit": "some ranks exit",
    "for": "loop count differs across ranks",
    "while": "loop count differs across ranks",
    "decorator": "runs it on one rank only",
}
"""What is said beside the test, by ``way`` in the details of a finding about ranks."""


def count_findings(report: Report) -> str:
    """Return ``2 errors, 1 warning in 1 file``."""
    active = [each for each in report.findings if each.state == "active"]
    counted = Counter(each.severity or "error" for each in active)
    words = dict.fromkeys([*SEVERITIES, *counted])
    parts = [_count_of(counted[word], word) for word in words if counted[word]]
    files = len({each.where[0].file for each in active if each.where})
    return f"{', '.join(parts)} in {count(files, 'file')}"


def _count_of(number: int, severity: str) -> str:
    return f"{number:,} info" if severity == "info" else count(number, severity)


def put_listing(paper: Paper, findings: Sequence[Finding], *, verbose: bool) -> None:
    """Write the findings in their order, each from the left margin, so that editors find ``file:line:column``."""
    for finding in findings:
        paper.gap()
        _put_title(paper, finding)
        paper.put(finding.message, indent=INDENT)
        _put_source(paper, finding)
        items = finding.evidence if verbose else [each for each in finding.evidence if each.kind != "source"]
        for number, item in enumerate(items):
            _put_words(paper, "seen" if number == 0 else "", item.text)
        for number, fix in enumerate(finding.fix):
            _put_words(paper, "fix" if number == 0 else "", fix.text)
            for line in (fix.command or "").splitlines():
                paper.put_verbatim(f"$ {line}", indent=INDENT + LABEL + 2, style="cyan")
            for line in (fix.code or "").splitlines():
                paper.put_verbatim(line, indent=INDENT + LABEL + 2, style="cyan")


def _put_title(paper: Paper, finding: Finding) -> None:
    place = finding.where[0] if finding.where else None
    name = "" if place is None else f"{name_place(place)} "
    proven = finding.details.get("proven")
    sure = proven if isinstance(proven, str) else f"{finding.confidence} confidence"
    severity = finding.severity or "error"
    words = [severity, sure]
    style = STYLES.get(severity)
    paper.put_parts(f"{name}{finding.code} {finding.name}", words, hang=INDENT, style=style)


def name_place(place: Where) -> str:
    """Return ``train.py:88:13``, of a notebook with the cell."""
    cell = "" if place.cell is None else f":cell {place.cell}"
    column = "" if place.column is None else f":{place.column}"
    return f"{place.file}{cell}:{place.line}{column}"


def _put_words(paper: Paper, label: str, text: str) -> None:
    paper.put(text, label=label, indent=INDENT, hang=INDENT + LABEL, label_style="dim")


def _put_source(paper: Paper, finding: Finding) -> None:
    """Write the lines of all places in order, those of other files below their names."""
    if not finding.where:
        return
    groups: dict[tuple[str, int | None], dict[int, Where]] = {}
    for place in finding.where:
        if place.source:
            groups.setdefault((place.file, place.cell), {}).setdefault(place.line, place)
    number_width = max((len(str(line)) for lines in groups.values() for line in lines), default=1)
    first = (finding.where[0].file, finding.where[0].cell)
    for key, lines in groups.items():
        if key != first:
            cell = "" if key[1] is None else f" (cell {key[1]})"
            paper.put_verbatim(f"{key[0]}{cell}", indent=INDENT, style="dim")
        _put_lines(paper, [lines[line] for line in sorted(lines)], finding, number_width)


def _put_lines(paper: Paper, places: Sequence[Where], finding: Finding, number_width: int) -> None:
    bar, dots, arrow = paper.clean("│"), paper.clean("⋮"), paper.clean("←")
    outer = min(place.indent or 0 for place in places)
    texts = [" " * ((place.indent or 0) - outer) + (place.source or "").strip() for place in places]
    notes = [describe_role(place, finding) for place in places]
    room = paper.width - INDENT - number_width - 4
    beside = max((paper.width_of(note) for note in notes if note), default=-5) + 5
    wide = max(map(paper.width_of, texts))
    column = min(wide, room - beside) if beside and room - beside >= LEAST_SOURCE else wide
    for number, (place, text, note) in enumerate(zip(places, texts, notes, strict=True)):
        if number and place.line > places[number - 1].line + 1:
            paper.put_verbatim(dots, indent=INDENT + number_width + 1)
        fits = bool(note) and column + 3 + paper.width_of(f"← {note}") <= room
        shown = clip(paper.clean(text), column if fits else room, paper.clean("…"))
        style = "bold" if place.role == "culprit" else None
        gap = " " * (column - paper.width_of(shown) + 3)
        tail = f"{gap}{paper.style(f'{arrow} {paper.clean(note)}', 'dim')}" if fits else ""
        head = f"{place.line:>{number_width}} {bar} "
        paper.put_made(" " * INDENT + head + paper.style(shown, style) + tail)


def describe_role(place: Where, finding: Finding) -> str:
    """Return what to say beside a line."""
    way = finding.details.get("way")
    if isinstance(way, str) and way in SIDES:
        operation = finding.details.get("operation")
        if place.role == "condition":
            return SIDES[way]
        if place.role == "noticed":
            return f"issues {operation}" if isinstance(operation, str) else "issues the collective"
        return "not all ranks reach this" if len(finding.where) > 1 else ""
    return {"condition": "because of this", "caller": "called here"}.get(place.role, "")
