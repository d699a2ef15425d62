"""Lines of the user's own source for a page that shows those around a place: without secrets, and bounded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ddpdoctor.gather.scrub import scrub, scrub_source

LARGEST = 300_000
"""Bytes of a file; a longer one is data or was made by a program."""
LONGEST = 400
"""Characters of a line that are kept."""


class SourceReader:
    """Reads Python files below one directory.

    A saved report may name any file: what lies elsewhere, or is not Python, is never read for one.

    Args:
        directory: findings name files from there.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._known: dict[str, tuple[str, ...] | None] = {}

    def __call__(self, name: str) -> tuple[str, ...] | None:
        """Return the lines of a file without secrets; None where it is not to be read, or cannot be."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> tuple[str, ...] | None:
        if os.path.isabs(name) or not name.endswith(".py"):
            return None
        try:
            path = (self._directory / name).resolve()
            facts = path.stat()
            inside = path.is_relative_to(self._directory.resolve())
            if not inside or not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST:
                return None
            text = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError, RuntimeError):
            return None
        scrubbed = scrub(text).split("\n")
        if len(scrubbed) != len(text.split("\n")):  # a secret of several lines: numbers would be others
            return None
        return tuple(scrub_source(line.rstrip("\r").expandtabs(4))[:LONGEST] for line in scrubbed)
