"""Reading the end of a log file."""

from __future__ import annotations

import os
from pathlib import Path

from ddpdoctor.gather.regular import open_regular

LAST_WORDS_BYTES = 4096
"""What is kept of the end of a dead process's stderr."""


def read_last_words(path: Path, limit: int = LAST_WORDS_BYTES) -> str | None:
    """Return the end of a log file, or None when it is absent or empty."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            text = file.read(limit).decode(errors="replace").strip()
    except OSError:
        return None
    return text or None
