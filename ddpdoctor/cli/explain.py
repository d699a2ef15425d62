"""``ddpdoctor explain CODE|name|WORDS``: the page of a finding, or the pages that answer some words, offline."""

from __future__ import annotations

import argparse
import re
import sys

from ddpdoctor.cli.index import Index, Page, load_index
from ddpdoctor.cli.output.display import Display, print_text
from ddpdoctor.errors import EXIT_OK, UsageError
from ddpdoctor.text.paper import Paper
from ddpdoctor.text.suggest import closest

EXAMPLES = (
    ("ddpdoctor explain NET001", "by code"),
    ("ddpdoctor explain port-in-use", "by name"),
    ("ddpdoctor explain barrier", "by words"),
    ('ddpdoctor explain "Connection closed by peer"', "by an error message"),
)
CODE = re.compile(r"[A-Z]{3}\d{3}", re.IGNORECASE)
"""How codes of ddpdoctor look."""
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+", re.IGNORECASE)
"""How names of findings look."""
NOT_PROSE = re.compile(r"\s|[*-] |\d+\. |https?://")
"""Beginnings of lines that belong to a list, a table, a command or references: these stay as they are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``explain``."""
    parser.add_argument(
        "finding",
        metavar="CODE|name|WORDS",
        nargs="+",
        help="code or name of a finding, or words to search for, such as an error message",
    )


def run(options: argparse.Namespace) -> int:
    """Print the page, or the pages that have the words.

    Raises:
        UsageError: there is no such finding.
    """
    index = load_index()
    words = " ".join(options.finding).strip()
    page = _named(words, index)
    display = Display.of(sys.stdout)
    if page is not None:
        print_text(render_page(page, index, display))
        return EXIT_OK
    if CODE.fullmatch(words) or (SLUG.fullmatch(words) and _find_near(words, index)):
        raise _no_page(words, index)
    from ddpdoctor.cli.searching import SHOWN, is_clear, search_pages

    hits = search_pages(words, index.pages)
    if not hits:
        raise UsageError(f"no page mentions {words!r}", hint="ddpdoctor list")
    pages = [hit.page for hit in hits[:SHOWN]]
    if is_clear(hits):
        print_text(render_page(pages[0], index, display))
        rest = render_matches(pages[1:4], display)
        if rest:
            print_text(f"\nother matches:\n{rest}")
        return EXIT_OK
    print_text(render_matches(pages, display))
    print_text(f"\nnext: ddpdoctor explain {pages[0].code}\n")
    return EXIT_OK


def render_matches(pages: list[Page], display: Display) -> str:
    """Return one line for each page: its code, and what is wrong."""
    paper = display.paper()
    width = max((paper.width_of(page.code) for page in pages), default=0)
    for page in pages:
        cells = [(page.code, width, "bold"), (page.title, paper.width - width - 4, None)]
        paper.put_row(cells, indent=2)
    return paper.text() if pages else ""


def render_page(page: Page, index: Index, display: Display) -> str:
    """Return one page: as Markdown for a terminal with colors, else as plain text."""
    paper = display.paper()
    source = [] if page.source == "ddpdoctor" else [f"from {page.source}"]
    facts = [page.severity, f"since {page.since}", *source]
    paper.put_parts(f"{page.code} {page.name}", facts, hang=2, style="bold")
    if display.color:
        from ddpdoctor.cli.output.rendered import render_markdown

        text = paper.text() + render_markdown(page.sections(indented=False), display)
        paper = display.paper()
    else:
        text = ""
        for heading, section in page.sections().items():
            paper.gap()
            if heading:
                paper.put(heading, style="bold")
            _put_section(paper, section, indent=2 if heading else 0)
        paper.gap()
    seen: dict[str, list[str]] = {}
    for row in index.rows:
        if page.code in row.codes:
            seen.setdefault(", ".join(row.commands), []).append(row.id)
    rows = (f"{', '.join(ids)} ({commands})" for commands, ids in seen.items())
    paper.put("; ".join(rows), label="Checks:", hang=2)
    return text + paper.text()


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


def _named(word: str, index: Index) -> Page | None:
    wanted = word.lower()
    return next((each for each in index.pages if wanted in (each.code.lower(), each.name.lower())), None)


def _no_page(word: str, index: Index) -> UsageError:
    if CODE.fullmatch(word):
        return UsageError(
            f"this version has no check for {word.upper()}, so there is no page for it",
            context="another version may have it, or the code does not exist",
            hint="ddpdoctor list",
        )
    near = _find_near(word, index)
    hint = f"ddpdoctor explain {near}" if near else "ddpdoctor list"
    return UsageError(f"there is no finding called {word!r}", hint=hint)


def _find_near(word: str, index: Index) -> str | None:
    """Return the code or name that may have been meant."""
    return closest(word, [text for page in index.pages for text in (page.code, page.name)])
