"""How many batches each rank's DataLoader will give: what makes one rank leave a loop before the others."""

from __future__ import annotations

import sys

from . import calls, describe, hooks, journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

EACH = 50
"""Iterations of one loader that are written down; after these only those of another length."""
_FRAMES = 6

_seen: dict[object, list[int]] = {}
"""Place -> how often a loader was iterated from there, and its length the last time."""


def patch_dataloader(module: ModuleType) -> None:
    """See iterations begin, from a function that each of them asks at its beginning and that does not raise."""
    real: Any = getattr(module, "_get_distributed_settings", None)
    if real is None:
        journal.trouble("loaders", "torch.utils.data has no _get_distributed_settings")
        return
    frame_of = sys._getframe

    def _get_distributed_settings() -> Any:
        frame = frame_of(1)
        if frame.f_code.co_name == "__init__":
            try:
                note(frame)
            except Exception as error:
                journal.failed("loaders", error)
        return real()

    hooks.replace(module, "_get_distributed_settings", _get_distributed_settings)


def note(frame: FrameType) -> None:
    """Write down that a loader begins to be iterated, unless it is as it was often before."""
    loader: Any = frame.f_locals.get("loader")
    if loader is None or not calls.is_watching():
        return  # A process without a process group loads for itself.
    own = calls.find_own_frame(frame)
    if own is None:
        return
    length = _measure(loader)
    place = (own.f_code, own.f_lasti)
    known = _seen.setdefault(place, [0, -2])
    known[0] += 1
    told = -1 if length is None else length
    if known[0] > EACH and known[1] == told:
        return
    known[1] = told
    sampler = getattr(loader, "sampler", None)
    journal.write(
        "loader",
        {
            "number": known[0],
            "length": length,
            "batch_size": getattr(loader, "batch_size", None),
            "drop_last": bool(getattr(loader, "drop_last", False)),
            "workers": int(getattr(loader, "num_workers", 0)),
            "sampler": describe.name_type(type(sampler)) if sampler is not None else None,
            "frames": describe.list_stack(own)[:_FRAMES],
        },
    )


def _measure(loader: Any) -> int | None:
    """Return the number of batches; None where only asking the program's own code would tell."""
    data = sys.modules.get("torch.utils.data")
    batches = getattr(loader, "batch_sampler", None)
    if data is None or isinstance(loader.dataset, data.IterableDataset):
        return None
    sampler = getattr(loader, "sampler", None)
    for each in (batches, sampler):
        if each is not None and not type(each).__module__.startswith("torch.utils.data."):
            return None
    measured: Any = batches if batches is not None else sampler
    return None if measured is None else len(measured)
