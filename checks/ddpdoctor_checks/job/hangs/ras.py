"""What NCCL's own service said of a job that stands still."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.judge import EvidenceItem

MOST_LINES = 6
LARGEST_RANK = 1 << 20
_MISSING = re.compile(r"^The missing ranks?: (\d[\d, -]{0,400})")
_PROCESS = re.compile(r"^Process (\d{1,10}) on node ([\w.:-]{1,64}) managing GPUs? \d{1,5}")
_COUNT = re.compile(r"^(\d{1,7}) ranks? (?:has|have) launched up to operation (\d{1,18})")
_RANK = re.compile(r"^Rank (\d{1,7}) -- GPU \d{1,5} managed by process (\d{1,10}) on node ([\w.:-]{1,64})")


@dataclass(slots=True)
class RasView:
    """What the pages of the service say of ranks, as numbers of its communicator."""

    missing: RankSet = field(default_factory=RankSet)
    """Ranks whose process did not answer."""
    processes: tuple[str, ...] = ()
    """Processes that did not answer, as ``process 4711 on 10.0.0.2``."""
    behind: RankSet = field(default_factory=RankSet)
    """Ranks that have launched fewer operations than most; empty where those that differ are ahead."""
    counts: tuple[str, ...] = ()
    """The lines that say so."""


def quote_ras(look: Standstill) -> Iterator[EvidenceItem]:
    """Yield what the RAS service of each node summed up, or why it said nothing."""
    for answer in look.ras:
        where = f"NCCL's RAS service at {answer.address}" + (f" on {answer.host}" if answer.host else "")
        if answer.note:
            yield EvidenceItem("ras", f"{where}: {answer.note}")
        for line in answer.lines[:MOST_LINES]:
            yield EvidenceItem("ras", f"{where}: {line}")


def read_ras(look: Standstill) -> RasView:
    """Return which ranks the service misses or counts behind.

    Numbers of ranks are those of a communicator: counts are taken only of one that has as many ranks as the job.
    """
    view = RasView()
    for answer in look.ras:
        groups: list[tuple[int, int, list[int]]] = []
        for line in answer.lines:
            if found := _MISSING.match(line):
                view.missing = view.missing.union(_read_ranks(found[1]))
            elif found := _PROCESS.match(line):
                view.processes = (*view.processes, f"process {found[1]} on {found[2]}")
            elif found := _COUNT.match(line):
                groups.append((int(found[1]), int(found[2]), []))
                view.counts = (*view.counts, line)
            elif (found := _RANK.match(line)) and groups:
                groups[-1][2].append(int(found[1]))
        if len(groups) > 1 and sum(size for size, _, _ in groups) == look.world_size:
            view.behind = view.behind.union(_find_behind(groups))
    return view


def _find_behind(groups: list[tuple[int, int, list[int]]]) -> RankSet:
    """Return the ranks of small groups that are all named and have launched less than the largest group."""
    _, usual, _ = max(groups)
    return RankSet(
        rank for size, count, ranks in groups if count < usual and len(ranks) == size for rank in ranks
    )


def _read_ranks(text: str) -> RankSet:
    """Return the ranks of a list such as ``3, 21-23``."""
    found: list[tuple[int, int]] = []
    for part in text.replace(",", " ").split():
        first, _, last = part.partition("-")
        if first.isdigit():
            start = int(first)
            end = min(int(last) if last.isdigit() else start, LARGEST_RANK)
            found += [(start, end)] if start <= end else []
    return RankSet.from_ranges(found)
