"""Which line seeded the random numbers that ranks drew: others on each of them, or the same on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.merging import join_seedings
from ddpdoctor.evidence.training.seedings import Seeding
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.judge import EvidenceItem, Where
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import join_words, name_set

LISTED = 4
"""Seeds that a sentence names."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """A line that seeded torch on some ranks, and with what."""

    line: Frame
    shares: tuple[Share, ...]


def find_seeded_apart(evidence: Evidence, drawn: Sequence[Share]) -> Seeded | None:
    """Return the last line before training at which ranks that drew different values got different seeds.

    Ranks that drew the same must have one seed there: what else parts them is not told by seeds.

    Args:
        evidence: of a training.
        drawn: ranks by what they drew.
    """
    ranks = RankSet().union(*(share.ranks for share in drawn))
    wanted = sorted(share.ranks.ranges for share in drawn)
    for seeded in _list_seeded(evidence, ranks):
        if len(seeded.shares) > 1 and sorted(share.ranks.ranges for share in seeded.shares) == wanted:
            return seeded
    return None


def find_one_seed(evidence: Evidence, ranks: RankSet) -> Seeded | None:
    """Return the last line before training that seeded some ranks, where all of them got one seed there."""
    last = next(iter(_list_seeded(evidence, ranks)), None)
    return last if last is not None and [share.ranks for share in last.shares] == [ranks] else None


def list_places(seeded: Seeded | None, line: Frame | None, ranks: RankSet) -> tuple[Where, ...]:
    """Return the line that seeded, where it is known, and the one at which it was noticed."""
    if seeded is None:
        return in_line(line, ranks, "culprit")
    return (*in_line(seeded.line, ranks, "culprit"), *in_line(line, ranks, "noticed"))


def tell_seeds(seeded: Seeded | None, ranks: RankSet) -> tuple[EvidenceItem, ...]:
    """Return which ranks got which seed."""
    if seeded is None:
        return ()
    told = join_words(f"{share.digest} on {name_set(share.ranks)}" for share in seeded.shares[:LISTED])
    return (EvidenceItem("seeds", f"torch is seeded with {told}", ranks),)


def _list_seeded(evidence: Evidence, ranks: RankSet) -> list[Seeded]:
    """Return the lines that seeded some of the ranks before training, the last one first."""
    found = []
    for seeding in reversed(join_seedings(evidence.training)):
        line, shares = user_line(seeding.frames), _restrict(seeding, ranks)
        if line is not None and shares and not seeding.trained:
            found.append(Seeded(line, shares))
    return found


def _restrict(seeding: Seeding, ranks: RankSet) -> tuple[Share, ...]:
    held = (
        Share(share.digest, RankSet(rank for rank in share.ranks if rank in ranks))
        for share in seeding.values
    )
    return tuple(share for share in held if share.ranks)
