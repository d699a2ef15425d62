"""A small writer of inline SVG: escaped text, classes instead of styles, a title and a description on each.

A strict content security policy refuses ``style`` attributes, so colours come from the style sheet by class
and geometry from SVG's own attributes.
"""

from __future__ import annotations

import math

from markupsafe import Markup, escape

from ddpdoctor.report.words import clean


def number(value: float) -> str:
    """Return a coordinate with at most one decimal, which is finer than a screen's pixel."""
    return f"{value:.1f}".removesuffix(".0")


class Drawing:
    """One ``<svg>`` element.

    Args:
        width: of the view box, in its own units.
        height: of the view box.
        css_class: class of the element.
        title: what it shows; read by screen readers. None makes it decoration, hidden from them.
        ident: page-wide unique id, needed with a title.
        description: more words for those who cannot see it.
        stretch: fill the element's box instead of keeping proportions.
        natural: be as large as the view box, in pixels, where the style sheet says nothing else.
    """

    def __init__(
        self,
        width: float,
        height: float,
        css_class: str,
        *,
        title: str | None = None,
        ident: str = "",
        description: str | None = None,
        stretch: bool = False,
        natural: bool = False,
    ) -> None:
        self._parts: list[str] = []
        size = f' width="{number(width)}" height="{number(height)}"' if natural else ""
        ratio = ' preserveAspectRatio="none"' if stretch else ""
        head = f'<svg class="{escape(css_class)}" viewBox="0 0 {number(width)} {number(height)}"{size}{ratio}'
        if title is None:
            self._head = f'{head} aria-hidden="true" focusable="false">'
            return
        described = f' aria-describedby="{escape(ident)}-d"' if description else ""
        self._head = f'{head} role="img" aria-labelledby="{escape(ident)}-t"{described}>'
        self._parts.append(f'<title id="{escape(ident)}-t">{escape(clean(title))}</title>')
        if description:
            self._parts.append(f'<desc id="{escape(ident)}-d">{escape(clean(description))}</desc>')

    def rect(
        self, x: float, y: float, width: float, height: float, css_class: str, tip: str | None = None
    ) -> None:
        """Add a rectangle, with a tool tip where ``tip`` is given."""
        geometry = (
            f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
            f' class="{escape(css_class)}"'
        )
        self._close("rect", geometry, tip)

    def circle(self, x: float, y: float, radius: float, css_class: str, tip: str | None = None) -> None:
        """Add a circle."""
        geometry = f'cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" class="{escape(css_class)}"'
        self._close("circle", geometry, tip)

    def line(self, x1: float, y1: float, x2: float, y2: float, css_class: str) -> None:
        """Add a straight line."""
        self._parts.append(
            f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
            f' class="{escape(css_class)}"/>'
        )

    def path(self, data: str, css_class: str) -> None:
        """Add a path; ``data`` is written by this package, never by a user."""
        self._parts.append(f'<path d="{escape(data)}" class="{escape(css_class)}"/>')

    def text(self, x: float, y: float, words: str, css_class: str, anchor: str = "start") -> None:
        """Add a text; ``anchor`` is start, middle or end."""
        self._parts.append(
            f'<text x="{number(x)}" y="{number(y)}" text-anchor="{escape(anchor)}"'
            f' class="{escape(css_class)}">{escape(clean(words))}</text>'
        )

    def _close(self, tag: str, geometry: str, tip: str | None) -> None:
        if tip is None:
            self._parts.append(f"<{tag} {geometry}/>")
        else:
            self._parts.append(f"<{tag} {geometry}><title>{escape(clean(tip))}</title></{tag}>")

    def markup(self) -> Markup:
        """Return the element, safe to put into the page."""
        # every part was escaped above, so this is markup and not text
        return Markup(self._head + "".join(self._parts) + "</svg>")


class LogScale:
    """Maps positive numbers to coordinates by their logarithm.

    Args:
        low: smallest value; positive.
        high: largest value; a range of less than one factor of ``base`` is widened to one.
        start: coordinate of ``low``.
        end: coordinate of ``high``.
        base: of the tick marks, 2 or 10.
    """

    def __init__(self, low: float, high: float, start: float, end: float, base: int) -> None:
        self.base = base
        if high / low < base:
            middle = math.sqrt(low * high)
            low, high = middle / math.sqrt(base), middle * math.sqrt(base)
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        """Return the coordinate of a positive value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Return at most ``most`` powers of the base inside the range, evenly spaced in their exponents.

        Where fewer than three powers of ten fit, twice and five times them are added.
        """
        tiny = 1e-9  # so that a range that ends on a power includes it in spite of rounding
        first = math.ceil(math.log(self.low, self.base) - tiny)
        last = math.floor(math.log(self.high, self.base) + tiny)
        step = max(1, math.ceil((last - first + 1) / most))
        powers = [float(self.base) ** power for power in range(first, last + 1, step)]
        if self.base == 10 and len(powers) < 3:
            fine = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
            powers = [value for value in fine if self.low <= value <= self.high]
        return powers


def polyline(points: list[tuple[float, float]]) -> str:
    """Return path data through the points."""
    return "".join(f"{'L' if i else 'M'}{number(x)} {number(y)}" for i, (x, y) in enumerate(points))


def stacked_bar(shares: list[tuple[float, str]], css_class: str) -> Markup:
    """Return a horizontal bar of parts (share, class), decoration beside figures that say the same."""
    total = sum(share for share, _ in shares)
    drawing = Drawing(100, 4, css_class, stretch=True)
    x = 0.0
    for share, part in shares:
        width = 100 * share / total if total else 0.0
        if width:
            drawing.rect(x, 0, width, 4, part)
        x += width
    return drawing.markup()
