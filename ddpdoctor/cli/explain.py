"""``ddpdoctor explain CODE|name``: the page of a finding, offline."""

from __future__ import annotations

import argparse
import re
import sys

from ddpdoctor.cli.display import Display, print_text
from ddpdoctor.cli.index import Index, Page, load_index
from ddpdoctor.errors import EXIT_OK, UsageError
from ddpdoctor.text.paper import Paper
from ddpdoctor.text.suggest import closest

EXAMPLES = (
    ("ddpdoctor explain NET001", "by code"),
    ("ddpdoctor explain port-in-use", "by name"),
)
CODE = re.compile(r"[A-Z]{3}\d{3}", re.IGNORECASE)
"""How codes of ddpdoctor look."""
NOT_PROSE = re.compile(r"\s|[*-] |\d+\. |https?://")
"""Beginnings of lines that belong to a list, a table, a command or references: these stay as they are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``explain``."""
    parser.add_argument("finding", metavar="CODE|name", help="as a report or `ddpdoctor list` shows it")


def run(options: argparse.Namespace) -> int:
    """Print the page.

    Raises:
        UsageError: there is no such finding.
    """
    index = load_index()
    wanted = options.finding.strip().lower()
    page = next((each for each in index.pages if wanted in (each.code.lower(), each.name.lower())), None)
    if page is None:
        raise _no_page(options.finding, index)
    print_text(render_page(page, index, Display.of(sys.stdout)))
    return EXIT_OK


def render_page(page: Page, index: Index, display: Display) -> str:
    """Return one page as plain text."""
    paper = display.paper()
    source = [] if page.source == "ddpdoctor" else [f"from {page.source}"]
    facts = [page.severity, f"since {page.since}", *source]
    paper.put_parts(f"{page.code} {page.name}", facts, hang=2, style="bold")
    for heading, text in page.sections:
        paper.gap()
        if heading:
            paper.put(heading, style="bold")
        _put_section(paper, text, indent=2 if heading else 0)
    paper.gap()
    seen: dict[str, list[str]] = {}
    for row in index.rows:
        if page.code in row.codes:
            seen.setdefault(", ".join(row.commands), []).append(row.id)
    told = (f"{', '.join(ids)} ({commands})" for commands, ids in seen.items())
    paper.put("; ".join(told), label="Checks:", hang=2)
    return paper.text()


def _put_section(paper: Paper, text: str, indent: int) -> None:
    """Write a section as its author broke it, but fill paragraphs anew that are too wide for the terminal."""
    for number, block in enumerate(text.split("\n\n")):
        if number:
            paper.gap()
        lines = block.splitlines()
        prose = not any(NOT_PROSE.match(line) for line in lines)
        if prose and any(paper.width_of(line) + indent > paper.width for line in lines):
            paper.put(block, indent=indent)
            continue
        for line in lines:
            paper.put_verbatim(line, indent=indent)


def _no_page(word: str, index: Index) -> UsageError:
    if CODE.fullmatch(word):
        return UsageError(
            f"no check of this version sees {word.upper()}, so there is no page on it",
            context="either another version finds it, or there is no such code",
            hint="ddpdoctor list",
        )
    near = closest(word, [text for page in index.pages for text in (page.code, page.name)])
    hint = f"ddpdoctor explain {near}" if near else "ddpdoctor list"
    return UsageError(f"there is no finding called {word!r}", hint=hint)
