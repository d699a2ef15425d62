"""Which codes a user wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.judge.registry import Check


@dataclass(frozen=True, slots=True)
class Selection:
    """Codes chosen by ``--select`` and ``--ignore``; ignoring wins."""

    select: frozenset[str] | None = None
    """Codes to keep; None keeps all."""
    ignore: frozenset[str] = frozenset()

    def wants(self, code: str) -> bool:
        """Whether findings of ``code`` are wanted."""
        return (self.select is None or code in self.select) and code not in self.ignore

    def choose_checks(self, checks: Sequence[Check]) -> list[Check]:
        """Return the checks that can raise at least one wanted code."""
        return [each for each in checks if any(self.wants(code) for code in each.codes)]
