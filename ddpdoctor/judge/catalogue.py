"""The catalogue: one page per code, a Markdown file in the package whose checks yield the code.

The page of ``NUM001`` is ``catalogue/NUM001.md`` beside the ``__init__.py`` of the top-level package. It begins with
the facts on the code, one ``key: value`` a line between two lines of ``---``; the text that ``ddpdoctor explain``
prints follows under the headings `PAGE_SECTIONS`. A check that brings its facts itself (see
`ddpdoctor.judge.registry.check`) has its docstring as the page.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.judge.finding import SEVERITIES
from ddpdoctor.text.sections import HEADING, split_sections

FOLDER = "catalogue"
"""Where the pages of a package lie in it."""
FACTS = ("code", "name", "title", "severity", "since")
"""Keys that the head of a page must have."""
MAY = ("explains",)
"""Keys that it may have."""
PAGE_SECTIONS = (
    "Symptoms",
    "Fix",
    "What it means",
    "How it decides",
    "Known false alarms",
    "References",
)
"""Headings that a page must have, in this order: a reader comes with an error message and wants the fix."""
PAGE_EXAMPLES = ("Wrong", "Right")
"""Headings of programs, behind the fix, on the pages of codes that are found in the source."""
PAGE_ORDER = ("Symptoms", "Fix", *PAGE_EXAMPLES, *PAGE_SECTIONS[2:])
"""All headings of a page, in order."""

_RULE = "---"


@dataclass(frozen=True, slots=True)
class CodePage:
    """One code of the catalogue with its page."""

    code: str
    name: str
    title: str
    severity: str
    text: str
    """Markdown below the head."""
    since: str
    source: str
    """Distribution that it comes from."""
    explains: tuple[str, ...] = ()
    """Codes that become consequences when this one is found."""
    file: str | None = field(default=None, compare=False)
    """Where it was read."""

    def sections(self) -> dict[str, str]:
        """Return heading -> text, in order; the text before the first heading is under ``""``.

        Blocks of code are indented by four spaces.
        """
        return split_sections(self.text)


def find_page(code: str, module: str) -> CodePage | None:
    """Return the page of a code from the catalogue of a module's package; None where that has none.

    Raises:
        ValueError: the page is not as it must be.
    """
    package = sys.modules.get(module.partition(".")[0])
    for folder in getattr(package, "__path__", ()):
        file = Path(folder) / FOLDER / f"{code}.md"
        if os.path.isfile(file):
            return read_page(file)
    return None


@functools.cache
def read_page(file: Path) -> CodePage:
    """Read one page.

    Raises:
        ValueError: a fact on the code is missing, twice there, unknown or wrong.
    """
    first, *lines = file.read_text(encoding="utf-8").split("\n")
    if first != _RULE or _RULE not in lines:
        raise ValueError(f"{file}: the page must begin with front matter between two lines of {_RULE}")
    end = lines.index(_RULE)
    facts: dict[str, str] = {}
    for line in lines[:end]:
        key, colon, value = line.partition(": ")
        if not colon or not value.strip() or key in facts or key not in (*FACTS, *MAY):
            raise ValueError(
                f"{file}: {line!r} is not one of {', '.join((*FACTS, *MAY))}, once, with a value"
            )
        facts[key] = value.strip()
    missing = [key for key in FACTS if key not in facts]
    if missing:
        raise ValueError(f"{file}: the page lacks {', '.join(missing)}")
    if facts["code"] != file.stem:
        raise ValueError(f"{file}: the page of {facts['code']} has the name of another code")
    require_severity(facts["code"], facts["severity"])
    explains = tuple(each.strip() for each in facts.pop("explains", "").split(",") if each.strip())
    text = "\n".join(lines[end + 1 :]).strip("\n")
    return CodePage(**facts, text=text, source="", explains=explains, file=str(file))


def require_severity(code: str, severity: str) -> None:
    """Refuse a severity that there is not.

    Raises:
        ValueError: there is no such severity.
    """
    if severity not in SEVERITIES:
        raise ValueError(f"{code}: unknown severity {severity!r}")


def read_docstring(docstring: str | None) -> str:
    """Return a docstring as the text of a page: its headings end in a colon, and what is below is indented."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for line in inspect.cleandoc(docstring or "").splitlines():
        if line.rstrip(":") in PAGE_SECTIONS and not line.startswith(" "):
            parts.append((line.rstrip(":"), []))
        else:
            parts[-1][1].append(line)
    blocks = []
    for heading, lines in parts:
        text = textwrap.dedent("\n".join(lines)).strip()
        blocks += [f"{HEADING}{heading}"] * bool(heading) + [text] * bool(text)
    return "\n\n".join(blocks)
