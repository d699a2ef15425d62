"""The one door for secrets: every text of a report is scrubbed before anything of it is shown or written.

Gatherers scrub what they bring, where they know most about it. What they forget, what plugins add and what older
reports hold is caught here.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.sources import SourcePlace
from ddpdoctor.evidence.stages import Frame
from ddpdoctor.evidence.world import UserError
from ddpdoctor.judge.finding import Where
from ddpdoctor.text.secret_names import is_secret_name

T = TypeVar("T")
Scrub = Callable[[str], str]

HIDDEN = "***"
SOURCE_FIELDS = frozenset(
    {(Where, "source"), (Frame, "source"), (UserError, "source"), (SourcePlace, "text")}
)
"""Fields that hold a line of source."""
_INERT = frozenset({int, float, bool, type(None), Numbers, RankSet})
_LONGEST_KEPT = 400
"""Characters of a text whose scrubbed form is remembered while a report is cleaned."""


class Cleaner:
    """Takes secrets out of dataclasses, lists and dictionaries at any depth.

    Args:
        scrub: takes secrets out of a text.
        scrub_source: takes secrets and telling comments out of a line of source.
    """

    def __init__(self, scrub: Scrub, scrub_source: Scrub) -> None:
        self._scrub = scrub
        self._scrub_source = scrub_source
        self._known: dict[str, str] = {}

    def clean(self, value: T) -> T:
        """Return a value without secrets: the same object where it held none."""
        cleaned: T = self._clean(value)
        return cleaned

    def _clean(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind is str:
            return self._clean_text(value)
        if kind in _INERT:
            return value
        names = _names(kind)
        if names is not None:
            return self._clean_fields(value, kind, names)
        if isinstance(value, (tuple, list)):
            return self._clean_items(value)
        if isinstance(value, dict):
            return self._clean_pairs(value)
        return value

    def _clean_text(self, text: str) -> str:
        known = self._known.get(text)
        if known is None:
            known = self._scrub(text)
            known = text if known == text else known
            if len(text) <= _LONGEST_KEPT:
                self._known[text] = known
        return known

    def _clean_fields(self, value: Any, kind: type, names: tuple[str, ...]) -> Any:
        changed: dict[str, Any] = {}
        for name in names:
            old = getattr(value, name)
            if type(old) in _INERT:
                continue
            source = type(old) is str and (kind, name) in SOURCE_FIELDS
            new = self._scrub_source(old) if source else self._clean(old)
            if new is not old and new != old:
                changed[name] = new
        return dataclasses.replace(value, **changed) if changed else value

    def _clean_items(self, value: Any) -> Any:
        items = [self._clean(item) for item in value]
        if all(map(_same, items, value)):
            return value
        return items if isinstance(value, list) else tuple(items)

    def _clean_pairs(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made = {self._clean(key): self._clean_named(key, item) for key, item in value.items()}
        same = (
            len(made) == len(value)
            and all(map(_same, made.values(), value.values()))
            and list(made) == list(value)
        )
        return value if same else made

    def _clean_named(self, name: Any, value: Any) -> Any:
        """A value whose name says that it is secret is hidden whole."""
        if type(value) is str and type(name) is str and value and is_secret_name(name):
            return HIDDEN
        return self._clean(value)


def _same(first: Any, second: Any) -> bool:
    return first is second


@functools.cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass; None for any other type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(sys.intern(field.name) for field in dataclasses.fields(kind) if field.init)
