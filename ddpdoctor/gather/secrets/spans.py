"""Stretches of a text that are to be hidden."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

HIDDEN = "***"


class Span(NamedTuple):
    """One stretch."""

    start: int
    end: int
    shown: str = HIDDEN
    """What is shown instead."""


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, those that overlap as one."""
    made: list[Span] = []
    for span in sorted(span for span in spans if span.end > span.start):
        if made and span.start < made[-1].end:
            last = made[-1]
            wider = span if span.end - span.start > last.end - last.start else last
            made[-1] = Span(last.start, max(last.end, span.end), wider.shown)
        else:
            made.append(span)
    return made


def cover(text: str, spans: Iterable[Span]) -> str:
    """Return a text with what `merge` returned covered; line breaks stay, so that lines keep their numbers."""
    parts: list[str] = []
    done = 0
    for start, end, shown in spans:
        inside = text[start:end]
        parts += [
            text[done:start],
            "\n".join([shown] * (inside.count("\n") + 1)) if "\n" in inside else shown,
        ]
        done = end
    return "".join([*parts, text[done:]])
