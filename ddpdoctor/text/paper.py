"""Lines of a terminal: wrapped to its width, harmless, coloured where colours are shown."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.text.characters import clip, neutralise, to_ascii, width_of, wrap

STYLES = {"bold": "1", "dim": "2", "red": "31;1", "green": "32;1", "yellow": "33;1", "cyan": "36"}
"""Select Graphic Rendition parameters of ECMA-48; every terminal of today knows these."""


class Paper:
    """Collects the lines of one output."""

    def __init__(self, *, width: int = 80, color: bool = False, ascii: bool = False) -> None:
        self.width = width
        self._color = color
        self._ascii = ascii
        self._lines: list[str] = []

    def clean(self, text: str) -> str:
        """Return ``text`` harmless, on one line, in what the terminal can show."""
        safe = neutralise(text)
        return to_ascii(safe) if self._ascii else safe

    def width_of(self, text: str) -> int:
        """Return the columns that ``text`` will take."""
        return width_of(self.clean(text))

    def style(self, text: str, style: str | None) -> str:
        """Return ``text`` in a style, if colours are shown."""
        if not self._color or style is None or not text:
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"

    def gap(self) -> None:
        """Leave one empty line, never two."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def put(
        self,
        text: str,
        *,
        label: str = "",
        indent: int = 0,
        hang: int | None = None,
        style: str | None = None,
        label_style: str | None = None,
        dotted: bool = False,
    ) -> None:
        """Write ``text``, wrapped.

        Args:
            text: anything; it is made harmless here.
            label: words before the text on its first line.
            indent: columns before the label.
            hang: columns before the text; where the label is longer, only those of the further lines. By
                default all lines begin where the label ends.
            style: of the text.
            label_style: of the label.
            dotted: break between the parts of the text, which have dots between them.
        """
        shown = self.clean(label)
        first = indent + width_of(shown) + (1 if shown else 0)
        if hang is not None:
            first = max(first, hang)
        start = first if hang is None else hang
        dot = self.clean("·") if dotted else None
        rest, room = max(16, self.width - start), max(16, self.width - first)
        lines = wrap(self.clean(text), rest, first=room, dot=dot)
        pad = " " * (first - indent - width_of(shown))
        self._lines.append(
            f"{' ' * indent}{self.style(shown, label_style)}{pad}{self.style(lines[0], style)}".rstrip()
        )
        self._lines.extend(f"{' ' * start}{self.style(line, style)}" for line in lines[1:])

    def put_verbatim(self, text: str, *, indent: int, style: str | None = None) -> None:
        """Write one line that is meant to be copied: made harmless, but never wrapped."""
        self._lines.append(" " * indent + self.style(self.clean(text), style))

    def put_made(self, line: str) -> None:
        """Write one line as it is: its parts were made harmless, cut and styled by this paper."""
        self._lines.append(line.rstrip())

    def put_parts(
        self, first: str, parts: Sequence[str], *, indent: int = 0, hang: int, style: str | None
    ) -> None:
        """Write ``first`` in a style and then ``parts`` between dots, broken at the dots where that fits."""
        dot = self.clean("·")
        line, used = " " * indent + self.style(self.clean(first), style), indent + width_of(self.clean(first))
        for part in map(self.clean, parts):
            if not part:
                continue
            if used + 3 + width_of(part) <= self.width:
                line, used = f"{line} {dot} {part}", used + 3 + width_of(part)
                continue
            self._lines.append(line)
            pieces = wrap(part, self.width - hang)
            self._lines.extend(" " * hang + piece for piece in pieces[:-1])
            line, used = " " * hang + pieces[-1], hang + width_of(pieces[-1])
        self._lines.append(line)

    def put_row(self, cells: Sequence[tuple[str, int, str | None]], *, indent: int) -> None:
        """Write cells (text, columns, style) side by side; what is too long is cut with a mark."""
        mark = self.clean("…")
        line = ""
        for text, columns, style in cells:
            shown = clip(self.clean(text), columns, mark)
            line += self.style(shown, style) + " " * (columns - width_of(shown) + 2)
        self._lines.append(" " * indent + line.rstrip())

    def text(self) -> str:
        """Return everything, ending in a newline."""
        return "\n".join(self._lines).rstrip("\n") + "\n"
