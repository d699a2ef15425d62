"""Patterns of paths, as .gitignore and the settings of ``lint`` have them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

SPECIAL = re.compile(r"(\*\*/|/\*\*|\*+|\?|\[[^\][]{1,200}\])")


def translate_glob(word: str) -> str:
    """Return the regular expression of a pattern of git: ``*`` stays in one directory, ``**`` does not."""
    special = {"**/": "(?:.*/)?", "/**": "/.*", "?": "[^/]"}
    return "".join(
        special[part]
        if part in special
        else "[^/]*"
        if part.startswith("*")
        else part.replace("[!", "[^")
        if part.startswith("[")
        else re.escape(part)
        for part in SPECIAL.split(word)
        if part
    )


def compile_paths(words: Iterable[str], roots: Iterable[Path]) -> Callable[[str], bool]:
    """Return whether a path, or a directory above it, is meant by one of the patterns.

    A pattern without a slash means that name anywhere; one with a slash begins at one of the roots.

    Args:
        words: patterns such as ``build``, ``*_test.py`` or ``examples/**/old``.
        roots: directories, absolute.

    Raises:
        ValueError: a pattern is not valid; its text is the message.
    """
    patterns = []
    for word in words:
        bare = word.removeprefix("./").strip("/")
        anywhere = "" if "/" in word.removeprefix("./").rstrip("/") else "(?:.*/)?"
        try:
            patterns.append(re.compile(f"{anywhere}{translate_glob(bare)}(?:/.*)?"))
        except re.error as problem:
            raise ValueError(word) from problem
    starts = [os.path.realpath(root) for root in roots]

    def matches(name: str) -> bool:
        if not patterns:
            return False
        whole = os.path.realpath(name)
        inside = [os.path.relpath(whole, start).replace(os.sep, "/") for start in starts]
        return any(pattern.fullmatch(each) for each in inside for pattern in patterns)

    return matches


def find_pyproject(start: Path) -> Path | None:
    """Return the nearest pyproject.toml in ``start`` or above, or None."""
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if os.path.isfile(path):
            return path
    return None
