"""Commands to paste into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

HOME = "~/"
"""What the home directory has been replaced by; between quotes a shell would look for a folder called ``~``."""


def quote_word(word: str) -> str:
    """Return a word as a shell has to be given it; the home directory at its beginning stays one."""
    if word.startswith(HOME) and len(word) > len(HOME):
        return HOME + shlex.quote(word.removeprefix(HOME))
    return shlex.quote(word)


def quote_words(words: Iterable[str]) -> str:
    """Return a command line."""
    return " ".join(map(quote_word, words))
