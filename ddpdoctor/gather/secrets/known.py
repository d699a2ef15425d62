"""Secrets that are known word for word: the values of this process's own variables whose names say so.

The command runs in the environment of the job, so these are the job's: hidden also where nothing else tells them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

from ddpdoctor.gather.secrets.spans import Span
from ddpdoctor.text.secret_names import is_secret_name

SHORTEST = 8
"""Characters of a value that is looked for everywhere: a shorter one may be a word or a number of anything."""


@functools.cache
def _known_values() -> tuple[str, ...]:
    found = {value for name, value in os.environ.items() if is_secret_name(name) and _is_distinct(value)}
    return tuple(sorted(found, key=len, reverse=True))


def _is_distinct(value: str) -> bool:
    """Whether a value is no word, path or number that a diagnosis may need."""
    plain = value.isdigit() or (value.isalpha() and (value.islower() or value.isupper()))
    return (
        len(value) >= SHORTEST
        and not plain
        and not value.startswith(("/", ".", "~"))
        and value.count("/") < 2
    )


def find_known(text: str) -> Iterator[Span]:
    """Yield every place where a known value stands."""
    for value in _known_values():
        place = text.find(value)
        while place >= 0:
            yield Span(place, place + len(value))
            place = text.find(value, place + len(value))
