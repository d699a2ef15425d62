"""``ddpdoctor explain CODE|name``: the page of a finding, offline."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from ddpdoctor.cli.suggest import closest
from ddpdoctor.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from ddpdoctor.judge.registry import CodePage, Registry

EXAMPLES = (
    ("ddpdoctor explain NET001", "by code"),
    ("ddpdoctor explain port-in-use", "by name"),
)
CODE = re.compile(r"[A-Z]{3}\d{3}", re.IGNORECASE)
"""How codes of ddpdoctor look."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``explain``."""
    parser.add_argument("finding", metavar="CODE|name", help="as a report or `ddpdoctor list` shows it")


def run(options: argparse.Namespace) -> int:
    """Print the page.

    Raises:
        UsageError: there is no such finding.
    """
    from ddpdoctor.cli.outputs import Display, print_text
    from ddpdoctor.plugins import CHECKS, load_plugins
    from ddpdoctor.report.characters import to_ascii

    registry = load_plugins(groups=(CHECKS,)).checks
    page = registry.find_page(options.finding)
    if page is None:
        raise _no_page(options.finding, registry)
    text = render_page(page, registry)
    ascii_only = Display.of(sys.stdout).options.ascii
    print_text("".join(to_ascii(line) for line in text.splitlines(keepends=True)) if ascii_only else text)
    return EXIT_OK


def render_page(page: CodePage, registry: Registry) -> str:
    """Return one page as plain text."""
    rows = [each for each in registry.checks if page.code in each.codes]
    checks = ", ".join(each.id for each in rows)
    source = "" if page.source == "ddpdoctor" else f" · from {page.source}"
    head = f"{page.code} {page.name} · {page.severity} · since {page.since}{source}"
    lines = [head, page.title, ""]
    for heading, text in page.sections().items():
        if heading:
            lines.append(heading)
        lines += [f"  {line}".rstrip() if heading else line for line in text.splitlines()]
        if text:
            lines.append("")
    lines.append(f"Seen by {checks}")
    return "\n".join(lines) + "\n"


def _no_page(word: str, registry: Registry) -> UsageError:
    if CODE.fullmatch(word):
        return UsageError(
            f"no check of this version sees {word.upper()}, so there is no page on it",
            context="either another version finds it, or there is no such code",
            hint="ddpdoctor list",
        )
    known = [text for page in registry.pages.values() for text in (page.code, page.name)]
    near = closest(word, known)
    hint = f"ddpdoctor explain {near}" if near else "ddpdoctor list"
    return UsageError(f"there is no finding called {word!r}", hint=hint)
