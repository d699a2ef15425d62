"""Reading the events that processes of a job wrote down: lines of JSON, whole or torn, and nobody's word to trust."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ddpdoctor.evidence.codec import LATEST_NS
from ddpdoctor.evidence.ranks import LARGEST_RANK
from ddpdoctor.facts.events import AnyEvent

LONGEST = 8 << 20
"""Bytes of one event; the longest that the hook writes names the parameters of a model."""
DAMAGED = (LookupError, ValueError, TypeError, AttributeError, OverflowError)
"""What making sense of an event raises that is not as the hook writes it."""
_COUNTERS = (
    "number", "index", "length", "batch_size", "forwards", "open_files", "optimizer", "table", "step", "count",
    "loader", "place", "epoch", "batches", "samples", "compared", "steps", "checked", "since", "backwards",
    "kept", "synced", "alone", "iteration", "unused", "timed",
    "routings", "routed",
)  # fmt: skip
_BOUNDS = {
    **dict.fromkeys(("rank", "local_rank", "world_size", "attempt", "node", "nodes"), (-1, LARGEST_RANK)),
    **dict.fromkeys(("wall_ns", "mono_ns", "alive_ns", "error_ns"), (0, LATEST_NS)),
    **dict.fromkeys(("each_ns", "apart_ns"), (0, LATEST_NS)),
    "offset_ns": (-LATEST_NS, LATEST_NS),
    **dict.fromkeys(("pid", "ppid"), (0, 1 << 31)),
    **dict.fromkeys(("code", "signal"), (-(1 << 31), (1 << 32) - 1)),
    **dict.fromkeys(_COUNTERS, (-1, (1 << 63) - 1)),
    "model": (-1000, 1000),
}
"""Numbers that are counted up to, or that name something. One that is none of them is as if it were not there."""
_GROUPS = ("variables", "exception", "parent")
_LISTS = (
    "ranks",
    "shape",
    "chain",
    "argv",
    "frames",
    "caller",
    "parameters",
    "buffers",
    "phase",
    "ends",
    "split",
    "columns",
    "looks",
    "loaders",
    "members",
)


def read_events(data: bytes) -> Iterator[AnyEvent]:
    """Yield what can be read, each an event with a name; lines that are damaged are passed over.

    Numbers out of all bounds, and values that are of another kind than the hook writes, are left out.
    """
    for line in data.split(b"\n"):
        if not line.startswith(b"{") or len(line) > LONGEST:
            continue
        try:
            event = json.loads(line, parse_constant=_refuse, parse_float=_read_float)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            cleaned: Any = clean_event(event)
            yield cleaned


def clean_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event without values that it cannot have."""
    return {str(_mend(key)): _mend(value) for key, value in event.items() if _fits(key, value)}


def _fits(key: str, value: object) -> bool:
    if value is None:
        return True
    if key in _BOUNDS:
        low, high = _BOUNDS[key]
        return type(value) is int and low <= value <= high
    if key in _GROUPS:
        return isinstance(value, dict)
    if key == "ranks":
        return isinstance(value, list) and all(
            type(rank) is int and -1 <= rank <= LARGEST_RANK for rank in value
        )
    return key not in _LISTS or isinstance(value, list)


def _mend(value: Any) -> Any:
    """Return a value whose texts can be written out, and whose numbers are bounded further in too."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_mend(each) for each in value]
    if isinstance(value, dict):
        return clean_event(value)
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _read_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number
