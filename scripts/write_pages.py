"""Writes docs/codes/README.md, the list of the pages in the catalogue of the checks.

``python scripts/write_pages.py`` writes it; with ``--check`` it exits with 1 where it is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddpdoctor.judge.catalogue import read_page

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "checks" / "ddpdoctor_checks" / "catalogue"
LIST = ROOT / "docs" / "codes" / "README.md"


def make_list() -> str:
    """Return the list as Markdown."""
    head = "# Codes\n\nEach page is what `ddpdoctor explain CODE` prints.\n\n"
    table = "| code | name | severity | what is wrong |\n|---|---|---|---|\n"
    folder = f"../../{CATALOGUE.relative_to(ROOT)}"
    rows = [
        f"| [{page.code}]({folder}/{page.code}.md) | {page.name} | {page.severity} | {page.title} |\n"
        for page in map(read_page, sorted(CATALOGUE.glob("*.md")))
    ]
    return head + table + "".join(rows)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            "docs/codes is not up to date: python scripts/write_pages.py"
            if LIST.read_text() != make_list()
            else 0
        )
    LIST.parent.mkdir(exist_ok=True)
    LIST.write_text(make_list())
