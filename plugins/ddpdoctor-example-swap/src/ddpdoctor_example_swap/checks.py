"""Judges what the gatherer saw."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, Registry, check

KEY = "ddpdoctor-example-swap/swap"
"""Distribution and gatherer: where its data lies in the evidence."""
MUCH = 256 << 20
"""Bytes. The kernel moves some idle pages out on any machine that runs for days, on desktops some tens of MB;
a quarter of a gigabyte is more than that."""


def register(registry: Registry) -> None:
    """Add the check."""
    registry.add(find_swapping)


@check(
    "X-ddpdoctor-example-swap-001",
    family="environment",
    needs=(),
    id="x.swap.unused",
    required=False,
    commands=("check",),
)
def find_swapping(evidence: Evidence) -> Iterable[Finding]:
    """A node has memory of processes on disk."""
    seen = evidence.extra.get(KEY, {})
    if not seen:
        raise CannotLook("the gatherer of this plugin saw no node")
    if not any(data["total"] for data in seen.values()):
        raise NotApplicable("no node has swap")
    for node, data in seen.items():
        if data["used"] > MUCH:
            ranks = RankSet(rank.rank for rank in evidence.ranks if rank.node == int(node))
            yield Finding(
                message=f"{data['host']} has {data['used'] / 2**30:.1f} GiB of memory swapped to disk.",
                ranks=ranks,
                nodes=(data["host"],),
                evidence=(EvidenceItem("meminfo", f"{data['used']:,} of {data['total']:,} bytes are used"),),
                fix=(Fix("Find who uses the memory.", "ps aux --sort=-rss | head"),),
                details={"used": data["used"], "total": data["total"]},
                confidence="medium",
            )
