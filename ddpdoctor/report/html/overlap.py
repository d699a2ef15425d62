"""How much of reducing the gradients hides behind the backward that makes them, on each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.training.timing import RankTimes, Timing
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.words import count, format_bytes, format_seconds

NODES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class OverlapView:
    """One node."""

    host: str
    """Empty where there is one."""
    said: str
    rows: tuple[tuple[str, Markup, str, str], ...]
    """Rows of the backward and of the reduction: name, bar, when it begins and when it ends."""


def view_overlaps(evidence: Evidence, caps: Caps) -> tuple[OverlapView, ...]:
    """Return the nodes on which DistributedDataParallel has measured its reductions."""
    hosts = {node.node: node.host for node in evidence.nodes}
    found = []
    for node in evidence.training:
        timing, computing = node.timing, _find_computing(node.timing.ranks)
        if computing is None or timing.exposed_s is None or not timing.reduction_s:
            continue
        host = hosts.get(node.node, f"node {node.node}") if len(evidence.training) > 1 else ""
        found.append(_view(host, timing, computing, timing.exposed_s, timing.reduction_s))
    if len(found) > NODES_SHOWN:
        caps.note(f"communication/computation overlap: the first {NODES_SHOWN} of {len(found)} nodes")
    return tuple(found[:NODES_SHOWN])


def _find_computing(ranks: Sequence[RankTimes]) -> float | None:
    """Return how long the backward takes on the rank that waits least for others, whose reduction is shown."""
    known = [
        (rank.exposed_s, rank.computing_s)
        for rank in ranks
        if rank.exposed_s is not None and rank.computing_s is not None
    ]
    return min(known)[1] if known else None


def _view(host: str, timing: Timing, computing: float, exposed: float, reduction: float) -> OverlapView:
    end = computing + exposed
    begin = max(0.0, end - reduction)
    hidden = max(0.0, reduction - exposed) / reduction
    longest = max(end, 1e-9)

    def draw(first: float, last: float, css: str) -> Markup:
        drawing = Drawing(100, 6, "time", stretch=True)
        drawing.rect(0, 0, 100, 6, "t-back")
        drawing.rect(100 * first / longest, 0, 100 * (last - first) / longest, 6, css)
        return drawing.markup()

    size = f" of {format_bytes(timing.gradient_bytes)}" if timing.gradient_bytes else ""
    return OverlapView(
        host,
        f"The gradient all-reduce{size} takes {format_seconds(round(reduction, 6))}, of which {hidden:.0%} "
        f"overlaps with the backward pass: medians over {count(timing.iterations, 'iteration')}, on the "
        "rank that waits least for other ranks.",
        (
            (
                "backward",
                draw(0.0, computing, "p-backward"),
                format_seconds(0.0),
                format_seconds(round(computing, 6)),
            ),
            (
                "reduction",
                draw(begin, end, "p-exposed"),
                format_seconds(round(begin, 6)),
                format_seconds(round(end, 6)),
            ),
        ),
    )
