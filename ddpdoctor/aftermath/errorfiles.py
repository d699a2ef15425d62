"""The error files of torch's elastic agent, as `record` and ``ddpdoctor run`` write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ddpdoctor.aftermath.tracebacks import Told, read_traceback

TEXT_LIMIT = 1 << 20
_NAMED = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,200}): ?(?P<message>.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """What one error file says."""

    type: str
    message: str
    told: Told | None
    """Its traceback, where it has one."""
    seconds: int | None = None
    """Since the epoch."""


def looks_like_error(data: Any) -> bool:
    """Whether JSON has torch's schema: ``{"message": {"message", "extraInfo": {"py_callstack", "timestamp"}}}``.

    An agent may also write a text: ``{"message": "…"}`` (torch/distributed/elastic/multiprocessing/errors).
    """
    if not isinstance(data, dict) or "message" not in data:
        return False
    message = data["message"]
    return (isinstance(message, dict) and ("extraInfo" in message or "message" in message)) or (
        isinstance(message, str) and len(data) <= 3
    )


def read_error(data: Any) -> ErrorFile:
    """Read the JSON of an error file; fields of other types than torch's count as absent.

    Args:
        data: what `looks_like_error` accepts.
    """
    message = data["message"]
    extra: Any = message.get("extraInfo") if isinstance(message, dict) else None
    extra = extra if isinstance(extra, dict) else {}
    words = message.get("message") if isinstance(message, dict) else message
    words = words[:TEXT_LIMIT] if isinstance(words, str) else ""
    stack = extra.get("py_callstack")
    told = read_traceback(stack[:TEXT_LIMIT]) if isinstance(stack, str) else None
    if told is None and "Traceback (most recent call last)" in words:
        told = read_traceback(words)
    named = _NAMED.match(words)
    kind, text = (named["type"], named["message"]) if named else ("", words)
    stamp = str(extra.get("timestamp") or "")
    return ErrorFile(kind, text, told, int(stamp) if stamp.isdigit() and len(stamp) < 12 else None)
