"""Who has the same: ranks grouped by a digest of what each of them has."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.evidence.ranks import RankSet


@dataclass(frozen=True, slots=True)
class Share:
    """Ranks that have the same."""

    digest: str
    ranks: RankSet
    norm: float | None = None
    """Euclidean norm, of one floating-point tensor."""
