"""Places, ranks and fixes of a finding in few words, for the formats that other programs read."""

from __future__ import annotations

import posixpath

from ddpdoctor.judge.finding import Finding, Where
from ddpdoctor.report.listing import describe_role
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.words import clean, clip, fold_hosts, format_ranks

SEEN_SHOWN = 6
"""Places and observations of one finding: as many as the terminal shows."""
SEEN_TEXT = 300
"""Characters of one observation, so that a log does not push the fix out of sight."""
TEXT_SHOWN = 2000
"""Characters of one text: what is longer holds a log, which the report has in full."""
RELATIONS = {"caller": "called from", "condition": "depends on"}
"""Role of a place -> what is said of it instead of its ranks."""


def name_file(file: str, options: RenderOptions) -> str:
    """Return the name of a file from the top of the repository, where one is known and the file is in it."""
    if options.root is None or options.directory is None:
        return file
    whole = posixpath.normpath(posixpath.join(options.directory, file))
    top = options.root.rstrip("/") + "/"
    return whole[len(top) :] if whole.startswith(top) else file


def describe_position(place: Where) -> str:
    """Return ``train.py:88``; in a notebook ``train.ipynb, cell 3, line 2``."""
    if place.cell is not None:
        return f"{place.file}, cell {place.cell}, line {place.line}"
    return f"{place.file}:{place.line}"


def describe_who(place: Where, finding: Finding, report: Report) -> str:
    """Return which ranks were at a place, or what it has to do with the finding; empty where neither is known."""
    if report.command == "lint":
        return describe_role(place, finding)
    if place.role in RELATIONS:
        return RELATIONS[place.role]
    words = format_ranks(place.ranks, report.world.size) if place.ranks else ""
    if place.host and len(report.world.nodes) > 1:
        words = f"{words} on {place.host}".strip()
    return f"detected on {words}" if place.role == "noticed" and words else words


def describe_line(place: Where, finding: Finding, report: Report) -> str:
    """Return a place with its source and what it has to do with the finding."""
    who, source = describe_who(place, finding, report), (place.source or "").strip()
    line = f"{describe_position(place)}: {source}" if source else describe_position(place)
    if report.command == "lint":
        return tidy(f"{line}  ← {who}" if who else line)
    return tidy(f"{who} {line}")


def describe_lines(finding: Finding, report: Report, *, places: bool = True) -> list[str]:
    """Return a finding as short lines of plain text: message, what was seen, what to do.

    Args:
        finding: what to describe.
        report: where it comes from.
        places: also tell the places after the first, where the format shows none.
    """
    size = report.world.size
    lines = [tidy(finding.message)]
    if finding.nodes:
        lines.append(f"on: {tidy(fold_hosts(finding.nodes))}")
    for place in finding.where[1:SEEN_SHOWN] if places else ():
        lines.append(describe_line(place, finding, report))
    for item in finding.evidence[:SEEN_SHOWN]:
        who = f"{format_ranks(item.ranks, size)}: " if item.ranks else ""
        lines.append(f"seen: {tidy(who + item.text, SEEN_TEXT)}")
    for fix in finding.fix:
        lines.append(tidy(f"fix: {fix.text}"))
        lines += [f"    $ {tidy(line)}" for line in (fix.command or "").splitlines()]
        lines += [f"    {clip(clean(line), TEXT_SHOWN)}" for line in (fix.code or "").splitlines()]
    if finding.victims:
        lines.append(f"affected (not the cause): {format_ranks(finding.victims, size)}")
    return lines


def tidy(text: str, limit: int = TEXT_SHOWN) -> str:
    """Return a text on one line, harmless and of at most some ``limit`` characters."""
    return clip(clean(" ".join(text.splitlines()).replace("\t", " ").strip()), limit)
