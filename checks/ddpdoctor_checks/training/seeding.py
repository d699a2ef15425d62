"""Which line seeded the random numbers that ranks drew: others on each of them, or the same on all."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.merging import join_seedings
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.judge import EvidenceItem
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.wording import join_words, name_set

LISTED = 4
"""Seeds that a sentence names."""


def find_seeded_apart(evidence: Evidence, drawn: Sequence[Share]) -> tuple[Frame, EvidenceItem] | None:
    """Return the last line before training at which ranks that drew different values got different seeds.

    Ranks that drew the same must have one seed there: what else parts them is not told by seeds.

    Args:
        evidence: of a training.
        drawn: ranks by what they drew.
    """
    ranks = RankSet().union(*(share.ranks for share in drawn))
    for seeding in reversed(join_seedings(evidence.training)):
        shares = _restrict(seeding.values, ranks)
        line = user_line(seeding.frames)
        same = sorted(share.ranks.ranges for share in shares) == sorted(share.ranks.ranges for share in drawn)
        if line is not None and not seeding.trained and len(shares) > 1 and same:
            return line, _tell_seeds(shares, ranks)
    return None


def find_seeded_alike(evidence: Evidence, ranks: RankSet) -> tuple[Frame, EvidenceItem] | None:
    """Return the last line before training that seeded torch, where all of some ranks got one seed there."""
    seedings = [each for each in join_seedings(evidence.training) if not each.trained]
    for seeding in reversed(seedings):
        shares = _restrict(seeding.values, ranks)
        line = user_line(seeding.frames)
        if line is not None and shares:
            alike = len(shares) == 1 and shares[0].ranks == ranks
            return (line, _tell_seeds(shares, ranks)) if alike else None
    return None


def _restrict(shares: Sequence[Share], ranks: RankSet) -> list[Share]:
    held = [Share(share.digest, RankSet(rank for rank in share.ranks if rank in ranks)) for share in shares]
    return [share for share in held if share.ranks]


def _tell_seeds(shares: Sequence[Share], ranks: RankSet) -> EvidenceItem:
    told = join_words(f"{share.digest} on {name_set(share.ranks)}" for share in shares[:LISTED])
    return EvidenceItem("seeds", f"torch is seeded with {told}", ranks)
