"""Suggestions for words that were probably mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.55
"""Similarity from which a suggestion helps; difflib's 0.6 misses single typos in words of four letters."""


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word nearest to ``word``, whatever the case, or None."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=CUTOFF)
    return by_lower[found[0]] if found else None
