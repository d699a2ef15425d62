"""Judgements that several checks build on, made once for each evidence.

``who ended the job`` or ``what the recorded calls show`` is asked by checks of several families. Such a function is
decorated with `once`: while `ddpdoctor.judge.runner.run_checks` runs checks, what it returns is kept until they have
ended. Outside of that, as in a test that calls it by itself, nothing is kept.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from ddpdoctor.evidence import Evidence

Judged = TypeVar("Judged")

_kept: contextvars.ContextVar[dict[tuple[object, int], tuple[Evidence, object]] | None]
_kept = contextvars.ContextVar("ddpdoctor_judgements", default=None)
"""(function, id of the evidence) -> the evidence, so that its id stays its own, and the judgement."""


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Keep judgements while this is open, in this context and in copies of it."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def once(judge: Callable[[Evidence], Judged]) -> Callable[[Evidence], Judged]:
    """Let a judgement be made once for each evidence while checks are run; one that raises is made again.

    Nobody waits for another: a check that hangs, and was given up, must not hold up those that come after it.
    """

    @functools.wraps(judge)
    def judged(evidence: Evidence) -> Judged:
        kept = _kept.get()
        if kept is None:
            return judge(evidence)
        key = (judge, id(evidence))
        if key not in kept:
            kept[key] = (evidence, judge(evidence))
        return cast(Judged, kept[key][1])  # what this very function returned

    return judged
