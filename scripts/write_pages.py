"""Writes docs/codes: one page per code, the same text that ``ddpdoctor explain CODE`` prints.

``python scripts/write_pages.py`` writes them; with ``--check`` it exits with 1 where one is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ddpdoctor_checks
from ddpdoctor.judge import CodePage, Registry

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "codes"


def make_pages() -> dict[str, str]:
    """Return file name -> text of every page, with an index."""
    registry = Registry()
    ddpdoctor_checks.register(registry)
    pages = {f"{page.code}.md": make_page(page, registry) for page in registry.pages.values()}
    rows = [
        f"| [{page.code}]({page.code}.md) | {page.name} | {page.severity} | {page.title} |"
        for page in sorted(registry.pages.values(), key=lambda page: page.code)
    ]
    made = "Each page is what `ddpdoctor explain CODE` prints; `scripts/write_pages.py` makes them."
    head = f"# Codes\n\n{made}\n\n"
    table = "| code | name | severity | what is wrong |\n|---|---|---|---|\n"
    return {"README.md": head + table + "\n".join(rows) + "\n", **pages}


def make_page(page: CodePage, registry: Registry) -> str:
    """Return one page as Markdown."""
    rows = [check.id for check in registry.checks if page.code in check.codes]
    parts = [f"# {page.code} {page.name}", f"{page.title} · {page.severity} · since {page.since}"]
    for heading, text in page.sections().items():
        if heading:
            parts.append(f"## {heading}")
        if text:
            parts.append(text)
    parts.append("## Rows in a report\n\n" + ", ".join(f"`{row}`" for row in rows))
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    pages = make_pages()
    if "--check" not in arguments:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for old in FOLDER.glob("*.md"):
            old.unlink()
        for name, text in pages.items():
            (FOLDER / name).write_text(text)
        return 0
    there = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    stale = sorted(name for name in pages.keys() | there.keys() if pages.get(name) != there.get(name))
    for name in stale:
        print(f"docs/codes/{name} is not up to date: python scripts/write_pages.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
