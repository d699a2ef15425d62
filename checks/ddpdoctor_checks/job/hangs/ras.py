"""What NCCL's own service said of a job that stands still."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.judge import EvidenceItem

MOST_LINES = 6


def quote_ras(look: Standstill) -> Iterator[EvidenceItem]:
    """Yield what the RAS service of each node summed up, or why it said nothing."""
    for answer in look.ras:
        where = f"NCCL's RAS service at {answer.address}" + (f" on {answer.host}" if answer.host else "")
        if answer.note:
            yield EvidenceItem("ras", f"{where}: {answer.note}")
        for line in answer.lines[:MOST_LINES]:
            yield EvidenceItem("ras", f"{where}: {line}")
