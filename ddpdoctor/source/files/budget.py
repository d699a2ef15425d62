"""How much work a file may cost: steps through its syntax tree, counted where all rules go.

Time would depend on the machine. A step is a node that is looked at, a name that is resolved, or a statement or call
that is compared with others: some microseconds each with what hangs on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

STEPS = 400_000
"""Steps that one rule may take on any file: about a second."""
STEPS_PER_LINE = 200
"""More for each line. The most that a rule takes on the tests of torch.distributed is 80."""

_left = [float("inf")]
SHARES = 4
"""All rules together may cost so many times what one may."""


class OverBudgetError(Exception):
    """The work on a file was more than it may cost."""


def spend(steps: int = 1) -> None:
    """Note work that was done.

    Raises:
        OverBudgetError: it was more than is left.
    """
    _left[0] -= steps
    if _left[0] < 0:
        raise OverBudgetError


def size_budget(lines: int, files: int = 1) -> int:
    """Return the steps that files of so many lines together may cost."""
    return files * STEPS + STEPS_PER_LINE * lines


def describe_cut(name: str, budget: float) -> str:
    """Return words on a part of the analysis that was stopped."""
    return f"{name}: stopped after {budget:,.0f} steps, the limit for a file of this size"


@contextmanager
def limit_steps(steps: float) -> Iterator[None]:
    """Let what is done inside cost so many steps at most, and no more than is left of what is around it."""
    before = _left[0]
    given = _left[0] = min(before, steps)
    try:
        yield
    finally:
        _left[0] = before - (given - _left[0])
