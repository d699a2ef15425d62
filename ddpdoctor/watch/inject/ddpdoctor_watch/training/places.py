"""Where in its data the program is at a backward pass: written down beside a value that is not finite."""

from __future__ import annotations

from ..core import lifetime, progress
from ..models import ddp
from . import loaders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddpdoctor.facts import training_events

_SAMPLES = 16


class _At:
    """Where the last backward pass was; each counts itself here (`backwards`)."""

    def __init__(self) -> None:
        self.place = (0, 0)
        """Place and number of the epoch."""
        self.index = 0
        """Backward passes in it."""


at = _At()


def describe() -> training_events.Place:
    """Return the number of the step, and which batch the loader gave last."""
    place, epoch = at.place
    batch, samples = loaders.latest()
    return {
        "step": progress.steps + 1,
        "loader": place,
        "epoch": epoch,
        "index": batch or at.index,
        "indices": samples[:_SAMPLES],
        "wrappers": sorted(ddp.forwards),
    }


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child has read nothing."""
    global at
    at = _At()
