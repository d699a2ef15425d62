"""Paths as they were given."""

from __future__ import annotations

import os

from ddpdoctor.errors import UsageError


def require_path(name: str, *, hint: str) -> None:
    """Return only where a file or directory exists.

    Args:
        name: of it, as given.
        hint: what to type instead.

    Raises:
        UsageError: it does not exist, or may not be looked at.
    """
    try:
        os.stat(name)
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise UsageError(f"there is no file or directory {name}", hint=hint) from problem
    except (OSError, ValueError) as problem:
        raise UsageError(f"{name!r} cannot be read: {problem}") from problem
