"""Where the program seeds torch's random number generators.

Ranks with seeds of their own draw different weights, ranks with one seed draw the same noise: what is equal or differs
later was decided at such a line.
"""

from __future__ import annotations

from ..core import budget, describe, journal, lifetime, progress, wrapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

LINES = 12
"""Lines of which the first call is written down."""
CALLS = 300
"""Calls after which none is looked at: some programs seed for each sample."""
_CALLERS = 3
"""Frames that tell two calls apart: a helper that is called from two lines is two places."""
_FRAMES = 12
_WORKER = "_worker_loop"
"""Function of torch that seeds each process of a DataLoader."""

_calls = 0
_seen: set[tuple[object, ...]] = set()


def patch_random(module: ModuleType) -> None:
    """See generators seeded: torch.manual_seed and torch.seed both end in this one."""
    wrapping.wrap(module, "_seed_custom_device", before=note)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _calls
    _calls = 0
    _seen.clear()


def note(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    """Write down the seed of a line that was not seen before.

    Args:
        frame: Of the function of torch.random.
        args: The seed.
    """
    global _calls
    if budget.level == budget.OFF or _calls >= CALLS or len(_seen) >= LINES:
        return
    _calls += 1
    caller: FrameType | None = frame
    while caller is not None and str(caller.f_globals.get("__name__", "")) == "torch.random":
        caller = caller.f_back
    if caller is None or caller.f_code.co_name == _WORKER:
        return
    key: list[object] = []
    outer: FrameType | None = caller
    while outer is not None and len(key) < 2 * _CALLERS:
        key += (outer.f_code, outer.f_lasti)
        outer = outer.f_back
    if tuple(key) not in _seen:
        _seen.add(tuple(key))
        journal.write(
            "seed",
            {
                "value": str(int(args[0])),
                "trained": progress.backwards > 0,
                "frames": describe.list_stack(caller)[:_FRAMES],
            },
        )
