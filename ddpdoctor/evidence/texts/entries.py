"""The table of texts: what torch, gloo, NCCL, CUDA, Python, the kernel and launchers print when a job fails.

Pure data, in the files of ``tables``: a section for each text, or for each class of texts that mean the same, in
order of precedence. Where several entries know one text the first cause wins, so narrow ones stand before wide ones.
Wordings were read from the sources and libraries of torch 2.4 to 2.13 or produced with torch 2.13.0, those of NCCL from
the sources of all its releases from 2.7 on (``scripts/nccl_texts.py`` says what is missing).

A section has a pattern, which is searched within one line and has only bounded repetitions over classes that cannot
match what follows them; or templates, the program's own format strings with named fields
(`ddpdoctor.evidence.texts.templates`), for what NCCL prints behind ``NCCL WARN``. ``<xids: KINDS>`` in a pattern means
the numbers of `ddpdoctor.facts.xids`.
"""

from __future__ import annotations

import configparser
import importlib.resources
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddpdoctor.evidence.texts.templates import Template, compile_template
from ddpdoctor.facts.xids import write_pattern

CAUSE = "cause"
"""The process that says it is at fault, or has lost what it needs itself."""
CONSEQUENCE = "consequence"
"""The process that says it lost another one, or was told to end."""
NOISE = "noise"
"""Harmless; users take it for the cause."""

FILES = (
    "network", "environment", "devices", "hardware", "drivers", "device_words", "collectives", "wrapper", "files",
    "crashes", "frameworks", "nccl", "plugins", "wide", "nccl_wide", "victims", "noise",
)  # fmt: skip
"""Files of the table, in order of precedence: narrow before wide."""
KEYS = frozenset({
    "role", "code", "rows", "anchor", "pattern", "gates", "unless", "condition", "doubt", "example", "templates",
    "place", "fix",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TextEntry:
    """One text that is known, or one class of texts that mean the same."""

    id: str
    pattern: str
    """Regular expression, searched in a line; its named groups are kept. Empty where there are templates."""
    anchor: str
    """Literal that every text of this entry contains: the quick test before the pattern."""
    role: str
    """One of `CAUSE`, `CONSEQUENCE`, `NOISE`."""
    code: str | None
    """Code of the catalogue that the text speaks for; None where it settles none."""
    rows: str
    """Rows of the list of failure modes that it comes from, e.g. ``L01 L17``."""
    example: str
    """A real text."""
    gates: tuple[str, ...] = ()
    """Literals of which every text holds at least one, where the anchor has no rare letter to search for."""
    unless: str | None = None
    """Regular expression; where it is found in the same line the entry does not match."""
    condition: str | None = None
    """Under which other evidence the text must not be taken for its code; the judge sees to it."""
    templates: tuple[Template, ...] = ()
    """What NCCL prints behind `NCCL_WARNS`, each with the releases in which it stands."""
    place: str | None = None
    """Source file that NCCL names before the text; templates of other places do not belong to the entry."""
    fix: str | None = None
    """What to do about it, where the page of its code is too wide."""
    doubt: str | None = None
    """What else the same text is said of: a verdict that rests on it alone is not sure."""


NCCL_WARNS = "NCCL WARN "
"""Stands between NCCL's prefix and the text of a template."""

_XIDS = re.compile(r"<xids:(?P<kinds>[a-z ]+)>")


def read_table(text: str) -> Iterator[TextEntry]:
    """Yield the entries of one file of the table.

    Args:
        text: of the file: sections of ``key = value``; lines of ``gates`` and ``templates`` are indented, and one of
            ``templates`` is ``first release-last release | template``.

    Raises:
        ValueError: a section has an unknown key, a kind of Xid that there is not, or a template that cannot be
            matched.
        configparser.Error: it is no such file.
    """
    parser = configparser.ConfigParser(
        interpolation=None, delimiters=("=",), comment_prefixes=("#",), inline_comment_prefixes=None
    )
    parser.read_string(text)
    for id in parser.sections():
        section = parser[id]
        unknown = set(section) - KEYS
        if unknown:
            raise ValueError(f"[{id}] has unknown keys: {', '.join(sorted(unknown))}")
        rows = [line.partition(" | ") for line in section.get("templates", "").splitlines() if line]
        templates = tuple(compile_template(form, versions.strip()) for versions, _, form in rows)
        yield TextEntry(
            id=id,
            pattern=_XIDS.sub(lambda found: write_pattern(found["kinds"]), section.get("pattern", "")),
            anchor=NCCL_WARNS if templates else _unquote(section["anchor"]),
            role=section["role"],
            code=section.get("code"),
            rows=section.get("rows", ""),
            example=section["example"],
            gates=tuple(_unquote(line) for line in section.get("gates", "").splitlines() if line),
            unless=section.get("unless"),
            condition=section.get("condition"),
            templates=templates,
            place=section.get("place"),
            fix=section.get("fix"),
            doubt=section.get("doubt"),
        )


def _unquote(text: str) -> str:
    """Return a literal; one that begins or ends with a blank stands in quotes."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _read_all() -> Iterator[TextEntry]:
    folder = importlib.resources.files("ddpdoctor.evidence.texts") / "tables"
    for name in FILES:
        yield from read_table((folder / f"{name}.ini").read_text(encoding="utf-8"))


ENTRIES: tuple[TextEntry, ...] = tuple(_read_all())
"""All entries, narrow before wide."""
