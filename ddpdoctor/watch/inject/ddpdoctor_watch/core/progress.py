"""Counts of optimizer steps and backward passes, which several parts write down with what they see."""

from __future__ import annotations

from . import lifetime

steps = 0
"""Steps of all optimizers of this process so far, those that are gone included."""
backwards = 0
"""Backward passes that have begun."""


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child has made none."""
    global steps, backwards
    steps = backwards = 0
