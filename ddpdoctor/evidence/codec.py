"""Turning evidence dataclasses into JSON-ready dictionaries and back.

Readers ignore keys that they do not know and take defaults for keys that are missing, so that an older file
and a newer one can both be read. Nothing but plain JSON types is ever produced or accepted. JSON has no
infinities and no NaN (RFC 8259, section 6), so these numbers travel as the texts ``inf``, ``-inf`` and
``nan``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from ddpdoctor.evidence.ranks import RankSet

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Return ``value`` (dataclass, RankSet, tuple, list, dict or plain) as JSON-ready data."""
    if isinstance(value, RankSet):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: encode(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def decode(kind: type[T], data: Any) -> T:
    """Build the dataclass ``kind`` from what `encode` made.

    Raises:
        ValueError: the data does not fit the fields of ``kind``.
    """
    try:
        return typing.cast(T, _build(kind, data))
    except (TypeError, AttributeError, KeyError) as problem:
        raise ValueError(f"not a {kind.__name__}: {problem}") from problem


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(hint: Any, data: Any) -> Any:
    if hint is Any:
        return data
    if hint is RankSet:
        return RankSet.parse(data)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = _hints(hint)
        return hint(**{key: _build(hints[key], item) for key, item in data.items() if key in hints})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        chosen = [arg for arg in args if arg is not type(None)]
        if data is None and len(chosen) < len(args):
            return None
        return _build(chosen[0], data) if len(chosen) == 1 else _build_plain(chosen, data)
    if origin in (tuple, list) and not isinstance(data, (list, tuple)):
        raise TypeError(f"expected a list, got {type(data).__name__}")
    if origin is tuple:
        inner = args[:1] * len(data) if len(args) == 2 and args[1] is Ellipsis else args
        return tuple(_build(arg, item) for arg, item in zip(inner, data, strict=True))
    if origin is list:
        return [_build(args[0], item) for item in data]
    if origin is dict:
        return {key: _build(args[1], item) for key, item in data.items()}
    return _build_plain([hint], data)


_SPECIAL = ("inf", "-inf", "nan")


def _build_plain(hints: Sequence[Any], data: Any) -> Any:
    """Return a number, text or truth value of one of the types; True is no number."""
    if float in hints and data in _SPECIAL and str not in hints:
        return float(data)
    if type(data) in hints:
        return data
    if type(data) is int and float in hints:
        return float(data)
    names = " or ".join(hint.__name__ for hint in hints)
    raise TypeError(f"expected {names}, got {type(data).__name__}")
