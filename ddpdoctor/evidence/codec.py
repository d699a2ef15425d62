"""Turning evidence dataclasses into JSON-ready dictionaries and back.

Readers ignore keys that they do not know and take defaults for keys that are missing, so that an older file
and a newer one can both be read. Nothing but plain JSON types is ever produced or accepted. JSON has no
infinities and no NaN (RFC 8259, section 6), so these numbers travel as the texts ``inf``, ``-inf`` and
``nan``.

The evidence of 16,384 ranks has some four million values: what is to be done with a field is worked out once
for each type and not for each value.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.evidence.ranks import LARGEST_RANK, RankSet

T = TypeVar("T")

LATEST_NS = 32_503_680_000 * 10**9
"""The year 3000: later than any clock says."""
_COUNTED = ("rank", "local_rank", "world_size", "nproc", "nnodes", "node", "node_rank", "attempt", "restarts")
_BOUNDS = {
    **dict.fromkeys(_COUNTED, (-1, LARGEST_RANK)),
    **dict.fromkeys(("wall_ns", "mono_ns", "seen_ns"), (0, LATEST_NS)),
}
"""Fields whose numbers a file may not choose freely."""

_PLAIN = frozenset({str, int, bool, type(None)})
"""Types whose values are JSON already."""


def encode(value: Any) -> Any:
    """Return ``value`` (dataclass, RankSet, Numbers, tuple, list, dict or plain) as JSON-ready data."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is RankSet:
        return str(value)
    if kind is Numbers:
        return value.differences()
    if kind is tuple or kind is list:
        return [encode(item) for item in value]
    names = _names(kind)
    if names is not None:
        return {name: encode(getattr(value, name)) for name in names}
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
    hint: Any = kind
    try:
        return typing.cast(T, _reader(hint)(data))
    except (TypeError, AttributeError, KeyError) as problem:
        raise ValueError(f"not a {kind.__name__}: {problem}") from problem


def mend(value: T) -> tuple[T, list[str]]:
    """Return a dataclass of which every field fits its type and its bounds, and the names of those that did not.

    What does not fit becomes the default. For what was made of data that somebody else wrote.

    Raises:
        ValueError: a field that has no default does not fit.
    """
    kind: Any = type(value)
    readers = _field_readers(kind)
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(typing.cast(Any, value)):
        try:
            readers[field.name](encode(getattr(value, field.name)))
        except (TypeError, AttributeError, KeyError, ValueError) as problem:
            if field.default is not dataclasses.MISSING:
                changed[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                changed[field.name] = field.default_factory()
            else:
                raise ValueError(f"{field.name}: {problem}") from problem
    return (dataclasses.replace(typing.cast(Any, value), **changed) if changed else value), sorted(changed)


@functools.cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass; None for any other type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


Reader = Callable[[Any], Any]
"""Builds a value of one type from JSON-ready data; raises TypeError, AttributeError, KeyError or ValueError."""


@functools.cache
def _reader(hint: Any) -> Reader:
    """Return what builds values of a type hint."""
    if hint is Any:
        return lambda data: data
    if hint is RankSet:
        return RankSet.parse
    if hint is Numbers:
        return lambda data: Numbers.from_differences(_require_list(data))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return functools.partial(_read_fields, hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(args)
    if origin is tuple:
        return _tuple_reader(args)
    if origin is list:
        item = _reader(args[0])
        return lambda data: [item(each) for each in _require_list(data)]
    if origin is dict:
        value = _reader(args[1])
        return lambda data: {key: value(each) for key, each in data.items()}
    return functools.partial(_read_plain, (hint,))


@functools.cache
def _field_readers(kind: type) -> dict[str, Reader]:
    return {
        name: functools.partial(_read_bounded, name, _reader(hint)) if name in _BOUNDS else _reader(hint)
        for name, hint in typing.get_type_hints(kind).items()
    }


def _read_bounded(name: str, read: Reader, data: Any) -> Any:
    value = read(data)
    low, high = _BOUNDS[name]
    if isinstance(value, (int, float)) and not low <= value <= high:
        raise ValueError(f"{name} {str(value)[:40]} is out of all bounds")
    return value


def _read_fields(kind: type, data: Any) -> Any:
    readers = _field_readers(kind)  # found here and not earlier, so that a type may hold itself
    return kind(**{key: readers[key](item) for key, item in data.items() if key in readers})


def _union_reader(args: tuple[Any, ...]) -> Reader:
    chosen = tuple(arg for arg in args if arg is not type(None))
    read = _reader(chosen[0]) if len(chosen) == 1 else functools.partial(_read_plain, chosen)
    if len(chosen) == len(args):
        return read
    return lambda data: None if data is None else read(data)


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _reader(args[0])
        return lambda data: tuple([item(each) for each in _require_list(data)])
    items = tuple(_reader(arg) for arg in args)
    return lambda data: tuple([read(each) for read, each in zip(items, _require_list(data), strict=True)])


def _require_list(data: Any) -> Any:
    if not isinstance(data, (list, tuple)):
        raise TypeError(f"expected a list, got {type(data).__name__}")
    return data


_SPECIAL = ("inf", "-inf", "nan")


def _read_plain(hints: Sequence[Any], data: Any) -> Any:
    """Return a number, text or truth value of one of the types; True is no number."""
    if type(data) in hints:
        return data
    if float in hints and data in _SPECIAL:
        return float(data)
    if type(data) is int and float in hints:
        return float(data)
    names = " or ".join(hint.__name__ for hint in hints)
    raise TypeError(f"expected {names}, got {type(data).__name__}")
