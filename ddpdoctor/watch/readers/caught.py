"""Exceptions of ranks that a library caught and another process reported: which of them ended the job.

Ray and pools run a function of the user's in a process, catch what it raises, and raise an exception in the process
that asked for it, with the traceback as text. Which rank raised it is known in the rank alone, where the library made
that text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpdoctor.facts.events import CaughtEvent


@dataclass(frozen=True, slots=True)
class Caught:
    """An event ``caught`` of a process."""

    pid: int
    event: CaughtEvent

    @property
    def caller(self) -> object:
        """File, line and function that made the text."""
        return next(iter(self.event.get("caller") or ()), None)


def choose_reported(caught: Sequence[Caught], reports: Sequence[Any]) -> list[Caught]:
    """Return the exceptions that were reported elsewhere, and what the same code caught last in other processes.

    Programs log exceptions that they have dealt with: what nobody reported is none of the job's end.

    Args:
        caught: in the order in which each process wrote them.
        reports: events ``exception`` of all processes.
    """
    chosen: dict[int, Caught] = {}
    for each in caught:
        if any(_quotes(report, each.event) for report in reports):
            chosen[each.pid] = each
    places = [each.caller for each in chosen.values() if each.caller is not None]
    others = {each.pid: each for each in caught if each.pid not in chosen and each.caller in places}
    return [*chosen.values(), *others.values()]


def _quotes(report: Any, event: Any) -> bool:
    """Whether an exception, or one that it was raised from, is or quotes one of another process."""
    links = [report, *(each for each in report.get("chain") or () if isinstance(each, dict))]
    return any(_is_same(link, event) or _has_text(str(link.get("message")), event) for link in links)


def _is_same(one: Any, other: Any) -> bool:
    frames, theirs = one.get("frames"), other.get("frames")
    if not frames or not theirs:
        return False
    return bool(_name(one) == _name(other) and frames[0] == theirs[0])


def _has_text(text: str, event: Any) -> bool:
    frames = event.get("frames")
    if not frames or "Traceback (most recent call last)" not in text:
        return False
    file, line, function = frames[0]
    place = f'File "{file}", line {line}, in {function}'
    raised = re.compile(rf"^(?:[\w.<>]+\.)?{re.escape(_name(event))}(?::|$)", re.MULTILINE)
    return place in text and raised.search(text) is not None


def _name(event: Any) -> str:
    return str(event.get("type")).rpartition(".")[2]
