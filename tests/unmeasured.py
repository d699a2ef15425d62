"""Processes that coverage does not measure: its hooks change what is compared, and take most of the time of loops."""

from __future__ import annotations

import os

HOOKS = ("COV_CORE", "COVERAGE")
"""What the variables begin with that make coverage start in each Python."""


def unmeasured(*others: str) -> dict[str, str]:
    """Return the environment without these, and without what begins with ``others``."""
    return {name: value for name, value in os.environ.items() if not name.startswith((*HOOKS, *others))}
