"""What the page leaves out. Every cap that bites is written down here and stated in the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ddpdoctor.report.words import clip

T = TypeVar("T")


class Caps:
    """Cuts lists and texts to what a page can show, and remembers what it cut."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def take(self, items: Sequence[T], limit: int, what: str) -> tuple[T, ...]:
        """Return the first ``limit`` items.

        Args:
            items: all of them.
            limit: how many the page shows.
            what: plural noun with its place, e.g. ``pairs of NET005``.
        """
        if len(items) > limit:
            self.notes.append(f"{what}: {limit:,} of {len(items):,} shown")
        return tuple(items[:limit])

    def clip(self, text: str, limit: int, what: str) -> str:
        """Return at most ``limit`` characters of ``text``; the cut is stated in the text too."""
        if len(text) > limit:
            self.notes.append(f"{what}: {limit:,} of {len(text):,} characters shown")
        return clip(text, limit)

    def note(self, text: str) -> None:
        """Write down something that was folded in another way."""
        self.notes.append(text)
