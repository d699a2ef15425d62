"""``ddpdoctor list``: all checks and where each comes from."""

from __future__ import annotations

import argparse
import sys

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.select import choose_codes
from ddpdoctor.cli.index import Index, Page, load_index
from ddpdoctor.cli.output.display import Display, print_text
from ddpdoctor.errors import EXIT_OK
from ddpdoctor.text.paper import Paper

EXAMPLES = (
    ("ddpdoctor list", "all findings and their checks"),
    ("ddpdoctor list --select NET -v", "one family, with the evidence that each check needs"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``list``."""
    common.add_selection_options(parser)
    common.add_verbosity_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    index = load_index()
    select, ignore = choose_codes(options, index.names)
    level = common.verbosity(options)
    paper = Display.of(sys.stdout, no_color=getattr(options, "no_color", False)).paper()
    chosen = [p for p in index.pages if (select is None or p.code in select) and p.code not in ignore]
    _put_pages(paper, index, chosen, level)
    if level >= 0:
        _put_others(paper, index)
    print_text(paper.text())
    return EXIT_OK


def _put_pages(paper: Paper, index: Index, pages: list[Page], level: int) -> None:
    family_of = {code: row.family for row in reversed(index.rows) for code in row.codes}
    for family in dict.fromkeys(family_of.get(page.code, "") for page in pages):
        paper.gap()
        paper.put(family, style="bold")
        for page in pages:
            if family_of.get(page.code, "") == family:
                _put_page(paper, index, page, level)
    paper.gap()
    codes = {page.code for page in pages}
    shown = sum(not codes.isdisjoint(row.codes) for row in index.rows)
    paper.put(f"{shown} checks, {len(pages)} findings; run `ddpdoctor explain CODE` for details")


def _put_page(paper: Paper, index: Index, page: Page, level: int) -> None:
    """Write one finding."""
    rows = [row for row in index.rows if page.code in row.codes]
    origin = "" if page.source == "ddpdoctor" else f" (from {page.source})"
    paper.put(f"{page.title}{origin}", label=f"{page.code} {page.name} [{page.severity}]", indent=2, hang=6)
    if level >= 0:
        paper.put(", ".join(row.id for row in rows), indent=6, style="dim")
    if level > 0:
        needs = dict.fromkeys(kind for row in rows for kind in row.needs)
        paper.put(f"needs {', '.join(needs) or 'nothing'}; since {page.since}", indent=6, style="dim")


def _put_others(paper: Paper, index: Index) -> None:
    paper.gap()
    paper.put("formats (--format NAME -o FILE)", style="bold")
    for name, words, source in index.formats:
        paper.put(
            words if source == "ddpdoctor" else f"{words} (from {source})", label=name, indent=2, hang=14
        )
    paper.gap()
    if index.gatherers:
        paper.put(", ".join(index.gatherers), label="gatherers:", hang=2)
    for distribution, group, text in index.problems:
        paper.put(f"{distribution} ({group}): {text}", label="✖ not loaded:", hang=2, label_style="red")
