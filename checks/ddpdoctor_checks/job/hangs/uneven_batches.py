"""Ranks that part because their DataLoaders give them different numbers of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import LoaderStand
from ddpdoctor.judge import EvidenceItem, Finding, Fix
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import count_of, join_words, name_set
from ddpdoctor_checks.job.hangs.reading import Reading

EXPLAINED = ("COL002", "COL008")
"""What an unequal number of batches can look like."""
EVEN = (
    Fix(
        "give every rank the same number of batches",
        code="sampler = DistributedSampler(dataset, drop_last=True)\n"
        "loader = DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)",
    ),
    Fix(
        "or use the Join context manager for uneven inputs",
        code="with Join([model]):\n    for batch in loader:\n        …",
    ),
)
MOST_RANKS = 64
"""Whose numbers of batches the details hold."""


def explain_by_batches(found: Finding, reading: Reading) -> Finding:
    """Return the finding as DAT003 where the loader of a loop gives the ranks at fault another number of batches.

    Only where the loop explains it: the ranks at fault have fewer batches and are past the loop, or gone, or they have
    more and still wait in it.
    """
    if found.code not in EXPLAINED:
        return found
    uneven = _find_uneven(reading)
    if uneven is None:
        return found
    line, counts = uneven
    most = max(counts.values())
    short = RankSet(rank for rank, count in counts.items() if count < most)
    # Which number is the right one shows where more than half of the ranks have it.
    usual = RankSet(rank for rank, count in counts.items() if count == most and 2 * len(short) < len(counts))
    told = join_words(
        f"{count_of(count, 'batch', 'batches')} on {name_set(RankSet(r for r, n in counts.items() if n == count))}"
        for count in sorted(set(counts.values()))
    )
    place = in_frame(line, short, "culprit")
    other = "victim" if usual else "noticed"
    others = tuple(
        replace(each, role=other if each.role in ("culprit", "victim") else each.role) for each in found.where
    )
    return replace(
        found,
        code="DAT003",
        message=(
            f"The DataLoader at {line.file}:{line.line} has {told}, so the ranks leave the loop at "
            f"different times. {found.message}"
        ),
        ranks=short,
        victims=usual,
        where=(place, *others),
        evidence=(*found.evidence, EvidenceItem("loader", f"length of the DataLoader: {told}")),
        fix=EVEN,
        details={**found.details, "batches": list_batches(counts)},
    )


def list_batches(counts: Mapping[int, int]) -> dict[str, int]:
    """Return numbers of batches by rank for the details of a finding."""
    return {str(rank): count for rank, count in list(counts.items())[:MOST_RANKS]}


def _find_uneven(reading: Reading) -> tuple[Frame, dict[int, int]] | None:
    """Return the line of the loader that ranks iterated last whose lengths differ, and the lengths by rank."""
    lines: dict[tuple[str, int], tuple[Frame, dict[int, LoaderStand]]] = {}
    for place in reading.places:
        for loader in place.stand.loaders:
            line = user_line(loader.frames)
            if line is not None:
                lines.setdefault((line.file, line.line), (line, {}))[1][place.rank] = loader
    found = None
    for line, loaders in lines.values():
        lengths = {rank: each.length for rank, each in loaders.items() if each.length is not None}
        same_time = len({each.number for each in loaders.values()}) == 1
        if len(lengths) == len(reading.places) and same_time and len(set(lengths.values())) > 1:
            found = (line, lengths) if found is None or _is_later(line, found[0], reading) else found
    return found


def _is_later(line: Frame, other: Frame, reading: Reading) -> bool:
    """Whether one loader was begun after the other, on the first rank."""
    order = [user_line(each.frames) for each in reading.places[0].stand.loaders]
    return _place_of(order, line) > _place_of(order, other)


def _place_of(order: Sequence[Frame | None], line: Frame) -> int:
    return next(
        (
            n
            for n, each in enumerate(order)
            if each is not None and (each.file, each.line) == (line.file, line.line)
        ),
        -1,
    )
