"""Pages in Markdown, taken apart at their headings."""

from __future__ import annotations

HEADING, FENCE = "## ", "```"


def split_sections(text: str, *, indented: bool = True) -> dict[str, str]:
    """Return heading -> text, in order; the text before the first heading is under ``""``.

    Args:
        text: a page, as Markdown with headings of the second level.
        indented: indent blocks of code by four spaces in place of their fences, for plain text.
    """
    found: dict[str, list[str]] = {"": []}
    lines, fenced = found[""], False
    for line in text.splitlines():
        if line.startswith(FENCE):
            fenced = not fenced
            if not indented:
                lines.append(line)
        elif fenced:
            lines.append(f"    {line}".rstrip() if indented else line)
        elif line.startswith(HEADING):
            lines = found.setdefault(line.removeprefix(HEADING).strip(), [])
        else:
            lines.append(line)
    return {heading: "\n".join(lines).strip("\n") for heading, lines in found.items()}
