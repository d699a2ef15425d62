"""The report as JSON: the form that the schema describes and from which every other output can be made."""

from __future__ import annotations

import json
import math
from typing import Any

from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions

LINE_WIDTH = 110
"""Values whose compact form is shorter stay on one line; the width at which this project's own code wraps."""

ROW_DEPTH = 3
"""Depth from which on a value is one line (one row of a list such as ``evidence.links``), so that a report of 16,384
ranks stays readable with line tools; findings are written out in full."""


class JsonRenderer:
    """Format ``json``."""

    name = "json"
    description = "the whole report as JSON (schema 1.1)"

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return the report as JSON text in UTF-8-safe form, ending in a newline.

        Numbers that JSON cannot hold (NaN, infinities) become null: could not be told. Lone surrogates stay
        escaped, so that the text can always be written as UTF-8.
        """
        data = replace_non_finite(report.to_dict())
        text = "".join(_write(data, 0, ROW_DEPTH, ascii_only=options.ascii))
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            text = "".join(_write(data, 0, ROW_DEPTH, ascii_only=True))
        return text + "\n"


_UNCHANGED = frozenset({str, int, bool, type(None)})


def replace_non_finite(value: Any) -> Any:
    """Return ``value`` with NaN and infinities replaced by None, at any depth."""
    if type(value) in _UNCHANGED:  # most of the four million values of a large report
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item) for item in value]
    return value


def _write(value: Any, depth: int, row_depth: int, *, ascii_only: bool) -> list[str]:
    compact = _compact(value, ascii_only) if _is_leaf(value) or depth >= row_depth else None
    if compact is not None:
        return [compact]
    pad, end = "  " * (depth + 1), "\n" + "  " * depth
    parts: list[str] = []
    if isinstance(value, dict):
        for key, item in value.items():
            deeper = 99 if key == "findings" else row_depth
            parts += [",\n" if parts else "\n", pad, _compact(str(key), ascii_only), ": "]
            parts += _write(item, depth + 1, deeper, ascii_only=ascii_only)
        return ["{", *parts, end, "}"]
    for item in value:
        parts += [",\n" if parts else "\n", pad, *_write(item, depth + 1, row_depth, ascii_only=ascii_only)]
    return ["[", *parts, end, "]"]


def _is_leaf(value: Any) -> bool:
    """Whether ``value`` is a scalar, a list of scalars, or a small object that fits one line."""
    if isinstance(value, dict):
        return len(value) <= 8 and all(_is_scalar(v) for v in value.values()) and _length(value) < LINE_WIDTH
    if isinstance(value, list):
        return all(_is_scalar(item) for item in value)
    return True


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, (dict, list))


def _length(value: dict[str, Any]) -> int:
    return sum(len(key) + len(str(item)) + 6 for key, item in value.items())


def _compact(value: Any, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False)
