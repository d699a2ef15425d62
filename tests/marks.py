"""Marks for cases of one test."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import pytest


def long(*values: Any) -> list[Any]:
    """Return cases that a plain run leaves out, because another case shows the same kind of trouble."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def mostly_long(values: Iterable[Any], *plain: Any) -> list[Any]:
    """Return all cases, of which a plain run takes only those that are named.

    Raises:
        ValueError: one that is named is not there.
    """
    cases = list(values)
    if missing := [each for each in plain if each not in cases]:
        raise ValueError(f"no such cases: {missing}")
    return [each if each in plain else long(each)[0] for each in cases]


def sampled(values: Iterable[Any], share: int) -> list[Any]:
    """Return all cases, of which a plain run takes one of so many, the same ones each time: the others are long."""
    cases = list(values)
    chosen = [zlib.crc32(repr(each).encode()) % share == 0 for each in cases]
    return [each if plain else long(each)[0] for each, plain in zip(cases, chosen, strict=True)]
