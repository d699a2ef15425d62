"""Turning evidence dataclasses into JSON-ready dictionaries and back.

Readers ignore keys that they do not know and take defaults for keys that are missing, so that an older
file and a newer one can both be read. Nothing but plain JSON types is ever produced or accepted.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
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
    if hint is Any or data is None:
        return data
    if hint is RankSet:
        return RankSet.parse(data)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = _hints(hint)
        return hint(**{key: _build(hints[key], item) for key, item in data.items() if key in hints})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        chosen = [arg for arg in args if arg is not type(None)]
        return _build(chosen[0], data) if len(chosen) == 1 else data
    if origin is tuple:
        inner = args[:1] * len(data) if len(args) == 2 and args[1] is Ellipsis else args
        return tuple(_build(arg, item) for arg, item in zip(inner, data, strict=True))
    if origin is list:
        return [_build(args[0], item) for item in data]
    if origin is dict:
        return {key: _build(args[1], item) for key, item in data.items()}
    if hint in (str, int, bool, float) and not isinstance(data, (hint, int) if hint is float else hint):
        raise TypeError(f"expected {hint.__name__}, got {type(data).__name__}")
    return data
