"""What several pictures draw alike: labels, and the size of what stands in a row of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.evidence import RankSet
from ddpdoctor.report.words import count, format_ranks

NAME, MARGIN = 7.3, 10.0
"""Width of a character of a lane's name (12 px), and what lies between it and the lane."""
CHARACTER = 6.7
"""Width of one in the monospaced text of 11 px that pictures use."""


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend."""

    css: str
    words: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One drawing with what has to be said of it."""

    title: str
    drawing: Markup
    keys: tuple[Key, ...] = ()
    note: str = ""
    narrow: bool = False
    """Whether it fits a phone as it is; others scroll there by themselves."""
    small: Markup | None = None
    """The drawing for a phone; None where ``drawing`` serves there too."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a picture of lanes is drawn on."""

    ident: str
    """Class of the drawing: wide, or small for a phone."""
    left: float
    """Where lanes begin, behind their names."""
    width: float


WIDE, SMALL = Sheet("swim-wide", 112.0, 900.0), Sheet("swim-small", 92.0, 360.0)


def name_lane(ranks: Sequence[int], sheet: Sheet) -> str:
    """Return what stands beside the lane of some ranks: their numbers, or how many they are where that is too long."""
    words = format_ranks(RankSet(ranks))
    return words if len(words) * NAME <= sheet.left - MARGIN else count(len(ranks), "rank")


def cut(words: str, width: float) -> str:
    """Return as much of a text as fits a width, with an ellipsis where it is cut."""
    most = max(1, int(width / CHARACTER))
    return words if len(words) <= most else words[: most - 1] + "…"
