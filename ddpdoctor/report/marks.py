"""Writing Markdown (GitHub's and GitLab's) in which a text of anyone's is nothing but text.

GitHub Flavored Markdown 0.29, https://github.github.com/gfm/; what GitHub adds after parsing (mentions, references to
issues, emoji) works on the text that is left, so only something invisible between the characters stops it.
"""

from __future__ import annotations

import html
import re
import textwrap

from ddpdoctor.judge.catalogue import CodePage
from ddpdoctor.report.finding_places import tidy
from ddpdoctor.report.html.findings import Block, Piece, view_page
from ddpdoctor.report.words import clean

NOTHING = "&#8203;"
"""A space of no width (U+200B)."""
_SPECIAL = re.compile(r"([\\`*{}\[\]<>|~$&])")
_LINES = re.compile("_+")
_SCHEME = re.compile(r":(?=//)")
_WWW = re.compile(r"(?i)\b(www)\.")
_MENTION = re.compile(r"@(?=\w)|#(?=\d)|\bGH-(?=\d)|:(?=(?:[a-z+-][\w+-]*|100|1234):)")
_START = re.compile(r"^([-+=#]|\d+(?=[.)]))")
_TICKS = re.compile(r"`+")


def escape(text: str, *, inside: bool = False) -> str:
    """Return one line of prose that shows ``text`` and does nothing else.

    Args:
        text: anything.
        inside: it never begins a line, as in a cell of a table.
    """
    shown = _LINES.sub(_escape_lines, _SPECIAL.sub(r"\\\1", tidy(text)))
    shown = _WWW.sub(r"\1\\.", _SCHEME.sub(r"\\:", shown))
    if not inside:
        shown = _start(shown)
    return _MENTION.sub(lambda match: match[0] + NOTHING, shown)


def _escape_lines(match: re.Match[str]) -> str:
    """Escape low lines, but not between letters: there they are no emphasis (section 6.4), and names stay readable."""
    before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    return match[0] if before.isalnum() and after.isalnum() else "\\_" * len(match[0])


def _start(text: str) -> str:
    """Take its meaning from what would begin a list, a heading or a rule."""
    if text[:1].isdigit():
        return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", text)
    return _START.sub(r"\\\1", text)


def escape_html(text: str) -> str:
    """Return one line for between HTML tags, where Markdown does not count but mentions do."""
    return _MENTION.sub(lambda match: match[0] + NOTHING, html.escape(tidy(text), quote=False))


def code(text: str, *, table: bool = False) -> str:
    """Return one line as a code span, in a row of a table if ``table``; empty for an empty text."""
    shown = tidy(text)
    if not shown:
        return ""
    ticks = "`" * (max(map(len, _TICKS.findall(shown)), default=0) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    if table:
        shown = shown.replace("|", "\\|")
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def fence(text: str, *, indent: int = 0, language: str = "") -> str:
    """Return lines as a block of code, ending in a newline."""
    lines = [clean(line) for line in text.splitlines()]
    ticks = "`" * max(3, max((len(run) for line in lines for run in _TICKS.findall(line)), default=0) + 1)
    block = "\n".join([f"{ticks}{language}", *lines, ticks])
    return textwrap.indent(block, " " * indent, lambda line: True).rstrip(" ") + "\n"


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Return a table; the cells are Markdown already."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def fold(summary: str, body: str) -> str:
    """Return ``body`` (Markdown) folded below ``summary`` (a text of anyone's)."""
    return f"<details><summary>{escape_html(summary)}</summary>\n\n{body.rstrip()}\n\n</details>\n"


def write_page(page: CodePage) -> str:
    """Return the page of a code as Markdown, without HTML."""
    parts = []
    for heading, blocks in view_page(page):
        if heading:
            parts.append(f"### {escape(heading)}\n")
        parts += [_write_block(block) for block in blocks]
    return "\n".join(parts)


def _write_block(block: Block) -> str:
    lines = ["".join(map(_write_piece, pieces)) for pieces in block.lines]
    if block.kind == "pre":
        return fence("\n".join(piece.text for pieces in block.lines for piece in pieces))
    if block.kind == "ul":
        return "".join(f"- {line.strip()}\n" for line in lines)
    return "\n".join(_start(line.strip()) for line in lines) + "\n"


def _write_piece(piece: Piece) -> str:
    if piece.kind == "code":
        return code(piece.text)
    if piece.kind == "link":
        return f"<{piece.text}>"
    lead, end = " " * piece.text.startswith(" "), " " * piece.text.endswith(" ")
    return f"{lead}{escape(piece.text)}{end}" if piece.text.strip() else " "
