"""Findings as the page shows them: evidence, places, fix, and the page of the code."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge.catalogue import CodePage
from ddpdoctor.judge.finding import EvidenceItem, Finding
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.sources import SourceView, view_sources
from ddpdoctor.report.registry import ReadSource
from ddpdoctor.report.words import fold_hosts, format_ranks

FINDINGS_SHOWN = 100
"""A page with more is not read; the JSON has them all."""
ITEMS_SHOWN = 24
"""Places, pieces of evidence or rows of one finding."""
PAIRS_SHOWN = 12
"""Pairs of one finding: about three lines."""
KINDS = {
    "victim": "affected",
    "ring": "collectives",
    "looks": "snapshots",
    "smoke": "device test",
    "text": "message",
}
"""Kinds of evidence that are shown by another word; the others are shown as they are."""
TEXT_SHOWN = 4000
"""Characters of one piece of evidence: about fifty lines."""


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """One observation."""

    kind: str
    text: str
    block: bool
    """Whether it has several lines and keeps them."""
    ranks: str | None
    source: str | None


@dataclass(frozen=True, slots=True)
class DetailView:
    """One entry of a finding's details: words, or a table."""

    name: str
    text: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph (p), list (ul) or verbatim block (pre) of a code's page."""

    kind: str
    lines: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Words of one kind: text, code or link (http and https only)."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding."""

    ident: str
    code: str
    name: str
    title: str | None
    severity: str
    confidence: str
    role: str
    withdrawn: str | None
    """Why it does not count; None where it does."""
    message: str
    """Empty where the headline of the page says it."""
    who: str | None
    victims: str | None
    nodes: str | None
    pairs: tuple[tuple[str, str], ...]
    pairs_more: int
    sources: tuple[SourceView, ...]
    evidence: tuple[EvidenceView, ...]
    fixes: tuple[tuple[str, str | None, str | None], ...]
    details: tuple[DetailView, ...]
    sections: tuple[tuple[str, tuple[Block, ...]], ...]
    """Heading and blocks of the code's page; empty where the page is shown elsewhere or not known."""


def view_findings(
    findings: tuple[Finding, ...],
    size: int,
    pages: dict[str, CodePage],
    caps: Caps,
    *,
    headline: str = "",
    read: ReadSource | None = None,
) -> tuple[FindingView, ...]:
    """Return the findings in their order; the page of a code goes with its first finding.

    Args:
        findings: of the report.
        size: ranks of the job.
        pages: code -> its page.
        caps: gets what is not shown.
        headline: what stands at the top of the page; a finding that says the same does not repeat it.
        read: gives the lines of source files.
    """
    seen: set[str] = set()
    views = []
    active = [f for f in findings if f.state == "active" and f.severity != "info"]
    for index, finding in enumerate(caps.take(findings, FINDINGS_SHOWN, "findings")):
        page = pages.get(finding.code)
        sections = view_page(page) if page is not None and finding.code not in seen else ()
        seen.add(finding.code)
        role = "root cause" if active and finding is active[0] and finding.role == "cause" else finding.role
        said = bool(headline) and finding.message == headline
        views.append(_view(finding, f"f{index + 1}", role, size, page, sections, caps, said, read))
    return tuple(views)


def _view(
    finding: Finding,
    ident: str,
    role: str,
    size: int,
    page: CodePage | None,
    sections: tuple[tuple[str, tuple[Block, ...]], ...],
    caps: Caps,
    said: bool,
    read: ReadSource | None,
) -> FindingView:
    code = finding.code
    places = caps.take(finding.where, ITEMS_SHOWN, f"places of {code}")
    return FindingView(
        ident=ident,
        code=code,
        name=finding.name,
        title=page.title if page is not None else None,
        severity=finding.severity or "error",
        confidence=finding.confidence,
        role=role,
        withdrawn=_describe_state(finding),
        message="" if said else caps.clip(finding.message, TEXT_SHOWN, f"message of {code}"),
        who=format_ranks(finding.ranks, size) if finding.ranks else None,
        victims=format_ranks(finding.victims, size) if finding.victims else None,
        nodes=fold_hosts(finding.nodes) if finding.nodes else None,
        pairs=caps.take(finding.pairs, PAIRS_SHOWN, f"pairs of {code}"),
        pairs_more=max(0, len(finding.pairs) - PAIRS_SHOWN),
        sources=view_sources(places, size, read, caps),
        evidence=tuple(
            _evidence(item, size, caps, code)
            for item in caps.take(finding.evidence, ITEMS_SHOWN, f"evidence of {code}")
        ),
        fixes=tuple((fix.text, fix.command, fix.code) for fix in finding.fix),
        details=tuple(_detail(key, value, caps, code) for key, value in finding.details.items()),
        sections=sections,
    )


def _describe_state(finding: Finding) -> str | None:
    if finding.suppression is None:
        return None if finding.state == "active" else finding.state
    reason = f": {finding.suppression.reason}" if finding.suppression.reason else ""
    return f"suppressed by {finding.suppression.by}{reason}"


def _evidence(item: EvidenceItem, size: int, caps: Caps, code: str) -> EvidenceView:
    source = None
    if item.source is not None:
        file, line = item.source
        source = file if line is None else f"{file}:{line}"
    text = caps.clip(item.text.rstrip(), TEXT_SHOWN, f"evidence of {code}")
    ranks = format_ranks(item.ranks, size) if item.ranks else None
    return EvidenceView(KINDS.get(item.kind, item.kind), text, "\n" in text, ranks, source)


def _detail(name: str, value: Any, caps: Caps, code: str) -> DetailView:
    label = name.replace("_", " ")
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        columns = tuple(dict.fromkeys(key for row in value[:ITEMS_SHOWN] for key in row))
        taken = caps.take(value, ITEMS_SHOWN, f"{label} of {code}")
        rows = tuple(
            tuple(_words(row.get(column), column, caps, code) for column in columns) for row in taken
        )
        return DetailView(label, "", tuple(column.replace("_", " ") for column in columns), rows)
    if isinstance(value, dict) and value:
        pairs = caps.take(list(value.items()), ITEMS_SHOWN, f"{label} of {code}")
        inner = tuple((str(key), _words(item, name, caps, code)) for key, item in pairs)
        return DetailView(label, "", ("", ""), inner)
    return DetailView(label, _words(value, name, caps, code))


def _is_ranks(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item >= 0 for item in value)


def _words(value: Any, name: str, caps: Caps, code: str) -> str:
    """Write one value of a finding's details in one line."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if ("rank" in name or "node" in name) and _is_ranks(value):
        return format_ranks(RankSet(value))
    if isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
        shown = caps.take(value, ITEMS_SHOWN, f"{name.replace('_', ' ')} of {code}")
        more = f" … and {len(value) - len(shown):,} more" if len(value) > len(shown) else ""
        return (", ".join(str(item) for item in shown) + more) if value else "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return caps.clip(text, TEXT_SHOWN, f"{name.replace('_', ' ')} of {code}")


def view_page(page: CodePage) -> tuple[tuple[str, tuple[Block, ...]], ...]:
    """Return the page of a code as headings with blocks."""
    sections = page.sections()
    return tuple((heading, parse_blocks(text)) for heading, text in sections.items() if text)


_ITEM = re.compile(r"^\s{0,3}(?:[*-]|\d+\.)\s+")


def parse_blocks(text: str) -> tuple[Block, ...]:
    """Read plain text: blank lines part paragraphs, ``*``/``-`` make lists, four spaces keep lines."""
    blocks = []
    for chunk in re.split(r"\n\s*\n", text):
        lines = [line.rstrip() for line in chunk.splitlines() if line.strip()]
        if not lines:
            continue
        if all(line.startswith("    ") for line in lines):
            blocks.append(Block("pre", ((Piece("text", "\n".join(line[4:] for line in lines)),),)))
        else:
            blocks.extend(_parse_lines(lines))
    return tuple(blocks)


def _parse_lines(lines: list[str]) -> list[Block]:
    """Part the lines of one chunk into a leading paragraph and the items of a list."""
    lead: list[str] = []
    items: list[str] = []
    for line in lines:
        if _ITEM.match(line):
            items.append(_ITEM.sub("", line))
        elif line.lstrip().startswith(("http://", "https://")):  # references stand one to a line
            items.append(line.strip().removesuffix(";").rstrip())
        elif items:
            items[-1] += " " + line.strip()
        else:
            lead.append(line.strip())
    blocks = []
    if lead:
        blocks.append(Block("p", (parse_pieces(" ".join(lead)),)))
    if items:
        blocks.append(Block("ul", tuple(parse_pieces(item) for item in items)))
    return blocks


_PIECE = re.compile(r"(``.+?``|`[^`]+`|https?://[^\s<>\"'`)\]]+)")


def parse_pieces(text: str) -> tuple[Piece, ...]:
    """Part a line into text, code in back ticks, and links."""
    pieces = []
    for part in _PIECE.split(text):
        if part.startswith("`") and len(part) > 1:
            pieces.append(Piece("code", part.strip("`")))
        elif part.startswith(("http://", "https://")):
            link = part.rstrip(".,;:")
            pieces.append(Piece("link", link))
            if link != part:
                pieces.append(Piece("text", part[len(link) :]))
        elif part:
            pieces.append(Piece("text", part))
    return tuple(pieces)
