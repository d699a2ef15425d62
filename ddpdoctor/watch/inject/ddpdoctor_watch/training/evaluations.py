"""Buffers where they are used outside of training: fingerprints at the first forward of an evaluation.

DistributedDataParallel broadcasts buffers before a forward of its own. What each rank's BatchNorm counted since is its
own until the next one, and is used where the wrapped module is called without the wrapper, or where the wrapper was
told not to broadcast. A forward of the wrapper is seen anyway. For one of the bare module a hook on all modules stands
from the beginning of a loader's iteration, while a wrapped model is not in training, to the first forward.
"""

from __future__ import annotations

from ..core import budget, frames, lifetime, progress, unseen
from ..models import ddp, modules, prints, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

FIRST = 4
"""Evaluations of a model that are looked at, and those whose number is a power of two."""
BUFFERS = 400
"""Most buffers of one model that are fingerprinted."""
_FRAMES = 8

_counts: dict[int, int] = {}
"""Number of a wrapper -> its evaluations."""
_trained: dict[int, tuple[int, int]] = {}
"""Number of a wrapper -> its forwards in training before the last one of them."""


def note_loader() -> None:
    """See the next forward of a model that is not in training, now that a loader begins to be iterated."""
    for number, wrapper in ddp.list_wrappers():
        if not tree.find_model(wrapper).training and _is_new(number):
            modules.open_window(modules.EVALUATION)
            return


def take_forward(number: int, wrapper: Any, syncs: bool, frame: FrameType) -> None:
    """Look at the buffers where a wrapper is called that is not in training.

    Args:
        number: The wrapper's.
        wrapper: It.
        syncs: It broadcasts its buffers now.
        frame: Of DistributedDataParallel._pre_forward.
    """
    if _is_new(number) and not syncs:
        _take(number, wrapper, "wrapper", frame)
    elif syncs:
        _mark(number)
    modules.close_window(modules.EVALUATION)


def take_module(number: int, frame: FrameType) -> None:
    """Look at the buffers where a wrapped module is called without its wrapper."""
    wrapper = next((each for key, each in ddp.list_wrappers() if key == number), None)
    if wrapper is not None and _is_new(number):
        _take(number, wrapper, "module", frame)
    modules.close_window(modules.EVALUATION)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    _counts.clear()
    _trained.clear()


def _is_new(number: int) -> bool:
    """Whether the model was trained since its last evaluation."""
    forwards = ddp.count_forwards(number)[:2]
    return sum(forwards) > 0 and _trained.get(number) != forwards


def _mark(number: int) -> int:
    _trained[number] = ddp.count_forwards(number)[:2]
    count = _counts[number] = _counts.get(number, 0) + 1
    return count


@unseen.behind
def _take(number: int, wrapper: Any, door: str, frame: FrameType) -> None:
    index = _mark(number)
    if (
        (index > FIRST and index & (index - 1))
        or prints.explain_busy() is not None
        or not budget.affordable()
        or not budget.has_room()
    ):
        return
    began = budget.clock()
    named = tree.list_buffers(tree.find_model(wrapper))[:BUFFERS]
    if not named:
        return
    measured = prints.measure([each for _, each in named])
    budget.write(
        "evaluation",
        {
            "number": number,
            "index": index,
            "step": progress.steps,
            "door": door,
            "broadcasts": bool(getattr(wrapper, "broadcast_buffers", True)),
            "names": [name[:200] for name, _ in named],
            "each": measured,
            "frames": frames.list_own(frame, _FRAMES),
        },
    )
    budget.spend(began)
