"""``ddpdoctor list``: all checks and where each comes from."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ddpdoctor.cli import options as common
from ddpdoctor.errors import EXIT_OK

if TYPE_CHECKING:
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.plugins import Plugins
    from ddpdoctor.report.paper import Paper

EXAMPLES = (
    ("ddpdoctor list", "every finding, and the checks that can see it"),
    ("ddpdoctor list --select NET -v", "one family, with what each check needs"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``list``."""
    common.add_selection_options(parser)
    common.add_verbosity_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    from ddpdoctor.cli.outputs import Display, print_text
    from ddpdoctor.cli.select import choose_selection
    from ddpdoctor.plugins import load_plugins
    from ddpdoctor.report.paper import Paper

    plugins = load_plugins()
    selection = choose_selection(options, plugins.checks)
    level = common.verbosity(options)
    display = Display.of(sys.stdout, verbosity=level, no_color=getattr(options, "no_color", False))
    paper = Paper(display.options)
    _put_checks(paper, plugins, selection, level)
    if level >= 0:
        _put_others(paper, plugins)
    print_text(paper.text())
    return EXIT_OK


def _put_checks(paper: Paper, plugins: Plugins, selection: Selection, level: int) -> None:
    checks = selection.choose_checks(plugins.checks.checks)
    pages = {code: page for code, page in plugins.checks.pages.items() if selection.wants(code)}
    for family in dict.fromkeys(each.family for each in checks):
        own = [each for each in checks if each.family == family]
        paper.gap()
        paper.put(family, style="bold")
        for code in dict.fromkeys(code for each in own for code in each.codes if code in pages):
            page = pages[code]
            origin = "" if page.source == "ddpdoctor" else f" [from {page.source}]"
            paper.put(
                f"{page.title}{origin}", label=f"{code} {page.name} ({page.severity})", indent=2, hang=6
            )
            if level >= 0:
                paper.put(", ".join(each.id for each in own if code in each.codes), indent=6, style="dim")
            if level > 0:
                needs = dict.fromkeys(kind for each in own if code in each.codes for kind in each.needs)
                paper.put(
                    f"needs {', '.join(needs) or 'nothing'} · since {page.since}", indent=6, style="dim"
                )
    paper.gap()
    paper.put(f"{len(checks)} checks, {len(pages)} findings; ddpdoctor explain CODE shows the page of one")


def _put_others(paper: Paper, plugins: Plugins) -> None:
    paper.put(", ".join(plugins.renderers.names), label="formats:")
    if plugins.gatherers.gatherers:
        paper.put(", ".join(each.key for each in plugins.gatherers.gatherers), label="gatherers:")
    for problem in plugins.problems:
        paper.put(
            f"{problem.distribution} ({problem.group}): {problem.text}",
            label="✖ not loaded:",
            label_style="red",
        )
