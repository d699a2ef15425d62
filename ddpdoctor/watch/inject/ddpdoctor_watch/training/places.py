"""Where in its data the program is at a backward pass: written down beside a value that is not finite."""

from __future__ import annotations

from ..core import lifetime, progress
from ..models import ddp
from . import loaders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddpdoctor.facts import training_events

_SAMPLES = 16

_place = (0, 0)
"""Place and number of the epoch of the last backward pass."""
_index = 0
"""Backward passes in it."""


def note_backward() -> None:
    """Count a backward pass that begins."""
    global _place, _index
    progress.backwards += 1
    place = loaders.reading
    if place is not _place:
        _place, _index = place, 0
    _index += 1


def describe() -> training_events.Place:
    """Return the number of the step, and which batch the loader gave last."""
    place, epoch = _place
    batch, samples = loaders.latest()
    return {
        "step": progress.steps + 1,
        "loader": place,
        "epoch": epoch,
        "index": batch or _index,
        "indices": samples[:_SAMPLES],
        "wrappers": sorted(ddp.forwards),
    }


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child has read nothing."""
    global _place, _index
    _place, _index = (0, 0), 0
