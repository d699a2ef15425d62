"""Debug settings that a program makes itself while it runs: which, at what line, and whether torch took notice."""

from __future__ import annotations

import os
import sys

from ..core import describe, journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

_BEGINNINGS = (
    "CUDA_LAUNCH_BLOCKING",
    "HIP_LAUNCH_BLOCKING",
    "AMD_SERIALIZE_KERNEL",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_NCCL_",
    "NCCL_",
)
"""Variables that CUDA, torch and NCCL read once: set later, they do nothing."""
_LEVEL = "TORCH_DISTRIBUTED_DEBUG"
_ANOMALY = "anomaly mode"
_VALUE = 200
_FRAMES = 12
OFTEN = 10
"""Times that anomaly mode is turned on after which it is no longer for a single look."""

_set_level = False
_anomalies = 0


def wrap_putenv(real: Callable[..., None]) -> Callable[..., None]:
    """Return ``os.putenv``, which assignments to ``os.environ`` call, with a look at what is set."""

    def putenv(name: Any, value: Any, /) -> None:
        try:
            _note_variable(name, value, sys._getframe(1))
        except Exception as error:
            journal.failed("putenv", error)
        real(name, value)

    return putenv


def wrap_unsetenv(real: Callable[..., None]) -> Callable[..., None]:
    """Return ``os.unsetenv``, which deletions from ``os.environ`` call, with a look at what is taken back."""

    def unsetenv(name: Any, /) -> None:
        try:
            _note_variable(name, "", sys._getframe(1))
        except Exception as error:
            journal.failed("unsetenv", error)
        real(name)

    return unsetenv


def note_anomaly(frame: FrameType) -> None:
    """Note that anomaly mode has been turned on: the first time, and when it is done again and again."""
    global _anomalies
    _anomalies += 1
    if _anomalies in (1, OFTEN):
        _write(_ANOMALY, "on", "set", describe.list_stack(frame)[:_FRAMES], count=_anomalies)


def note_forward() -> None:
    """Note anomaly mode where it is on when a wrapped model runs for the first time."""
    if _is_anomaly():
        _write(_ANOMALY, "on", "first-forward", [])


def note_end() -> None:
    """Note what is on when the program ends, and the level that torch went by, where the program set another."""
    if _is_anomaly():
        _write(_ANOMALY, "on", "end", [])
    level = getattr(sys.modules.get("torch.distributed"), "get_debug_level", None)
    if _set_level and level is not None:
        _write(_LEVEL, str(level().name), "end", [])


def _note_variable(name: Any, value: Any, frame: FrameType) -> None:
    global _set_level
    if not isinstance(name, (str, bytes)) or not isinstance(value, (str, bytes)):
        return  # What follows raises as it always did.
    text = os.fsdecode(name)
    if not text.startswith(_BEGINNINGS):
        return
    new = os.fsdecode(value)
    if os.environ.get(text) == new:
        return
    _set_level = _set_level or text == _LEVEL
    _write(text, new[:_VALUE], "set", describe.list_stack(frame)[:_FRAMES])


def _write(name: str, value: str, how: str, frames: list[list[object]], count: int = 1) -> None:
    cuda = sys.modules.get("torch.cuda")
    journal.write(
        "setting",
        {
            "name": name,
            "value": value,
            "how": how,
            "count": count,
            # The driver reads its variables when the first context is made.
            "cuda": bool(getattr(cuda, "_initialized", False)),
            "frames": frames,
        },
    )


def _is_anomaly() -> bool:
    if "torch.autograd.anomaly_mode" not in sys.modules:
        return False
    enabled = getattr(sys.modules.get("torch"), "is_anomaly_enabled", None)
    return enabled is not None and bool(enabled())
