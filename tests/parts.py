"""Parts of a page that different commands write, each under a heading of the second level."""

from __future__ import annotations


def replace_part(page: str, part: str) -> str:
    """Return a page with a part in the place of the older one of its heading, or at the end; others stay."""
    heading = part.partition("\n")[0]
    before, _, after = page.partition(f"{heading}\n")
    behind = after.partition("\n## ")[2]
    return f"{before.rstrip()}\n\n{part}" + (f"\n## {behind}" if behind else "")


def take_parts(page: str, heading: str) -> str:
    """Return what stands in a page from a heading on; nothing where the page has no such heading."""
    _, found, after = page.partition(f"{heading}\n")
    return f"\n{found}{after}"
