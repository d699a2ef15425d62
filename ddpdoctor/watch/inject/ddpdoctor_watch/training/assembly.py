"""Installs the hooks that watch a training loop, and lets them write their last events in order."""

from __future__ import annotations

from ..core import lifetime, unseen
from . import backwards, clocks, gathers, loaders, scalers, steps


def install(ranks: int) -> None:
    """Install the hooks, once; called whenever a group of several ranks has been made.

    Args:
        ranks: How many there are.
    """
    if steps.install(ranks):
        backwards.install()
        scalers.install()
        gathers.install()


@lifetime.at(lifetime.ENDING)
@unseen.behind
def note_end() -> None:
    """Write the last events: when groups are destroyed, or when the process ends."""
    loaders.note_end()
    if not steps.finish():
        return
    backwards.note_end()
    clocks.write()
    scalers.note_end()
    steps.note_end()
