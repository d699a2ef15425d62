"""Logs each line of which is a JSON object, as Docker's json-file driver and log collectors write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

TEXTS = ("log", "message", "msg", "textPayload", "line", "MESSAGE")
"""Keys under which the text of a line stands: of Docker, of collectors and Python's JSON formatters, of Google Cloud,
of Grafana Loki, of journalctl -o json."""
TIMES = ("time", "timestamp", "@timestamp", "ts")
LOOKED_AT = 50
"""Lines at the start of a log that decide what it is."""


def choose_unwrapping(head: bytes) -> Callable[[bytes], bytes] | None:
    """Return what takes whole lines of such a log and gives the text inside; None where it is no such log.

    Args:
        head: the start of the log.
    """
    lines = [line for line in head.split(b"\n")[:-1][:LOOKED_AT] if line.strip()]
    objects = [each for line in lines if (each := _read(line)) is not None]
    if len(objects) < 2 or len(objects) < 0.9 * len(lines):
        return None
    for key in TEXTS:
        if all(isinstance(each.get(key), str) for each in objects):
            ended = any(each[key].endswith("\n") for each in objects)
            return partial(_unwrap, key=key, ended=ended)
    return None


def _read(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unwrap(data: bytes, *, key: str, ended: bool) -> bytes:
    """Return the texts of lines, each after its time; a line that is no object stays as it is.

    Docker cuts a long line: where the texts bring their own ends, one without an end goes on in the next object.
    """
    parts: list[str] = []
    begun = False
    for line in data.split(b"\n"):
        found = _read(line)
        text = found.get(key) if found is not None else None
        if found is None or not isinstance(text, str):
            text = line.decode("utf-8", "replace") + "\n" if line else ""
        else:
            time = next((each for name in TIMES if isinstance(each := found.get(name), str)), "")
            text = text if ended else text + "\n"
            text = f"{time} {text}" if time and not begun else text
        if text:
            parts.append(text)
            begun = not text.endswith("\n")
    return ("".join(parts) + ("\n" if begun else "")).encode("utf-8", "replace")
