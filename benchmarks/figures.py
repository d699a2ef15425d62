"""A figure with its bar, and tables of them for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class BenchmarkError(Exception):
    """A command that was to be measured did not do what it should: its time would mean nothing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value."""

    benchmark: str
    """Name for ``--only``."""
    what: str
    value: float
    unit: str
    """s, MB (1e6 bytes), GiB, or empty for a count or a ratio."""
    bar: float | None = None
    """The value has to be below; None for a figure that is only told."""
    detail: str = ""
    """Spread, number of runs, and what else is needed to read it."""

    @property
    def met(self) -> bool | None:
        """Whether the value is below its bar; None without one."""
        return None if self.bar is None else self.value < self.bar

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table: what, figure, bar, met, detail."""
        word = {None: "", True: "met", False: "MISSED"}[self.met]
        bar = "" if self.bar is None else f"< {_show(self.bar, self.unit)}"
        return self.what, _show(self.value, self.unit), bar, word, self.detail


HEADINGS = ("what", "figure", "bar", "", "how")


def _show(value: float, unit: str) -> str:
    digits = f"{value:g}" if value == int(value) else f"{value:.3g}"
    return f"{digits} {unit}".strip()


def format_table(figures: Sequence[Figure]) -> str:
    """Return the figures as aligned text, one line each, without a final newline."""
    rows = [HEADINGS, *(figure.cells() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def format_markdown(figures: Sequence[Figure], facts: Sequence[str]) -> str:
    """Return the figures as a Markdown table with the facts of the machine below, ending in a newline."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(figure.cells() for figure in figures)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([*lines, "", f"Measured on {'; '.join(facts)}.", ""])
