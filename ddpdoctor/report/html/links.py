"""Heat maps: how fast each pair of ranks or nodes is, and which nodes reach which over TCP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from ddpdoctor.evidence import Evidence, Link, PairRow
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.words import clean, count, format_bandwidth, is_known

CELLS_SHOWN = 64
"""Rows and columns of a heat map; more ranks or nodes are joined into blocks of neighbours."""
NUMBERS_SHOWN = 16
"""Up to this many rows the map is a table with its figures in the cells; above, a drawing with a table of the
slowest pairs."""
SLOWEST_SHOWN = 12
"""Pairs in the table beside a drawing."""
FAILURES_SHOWN = 50
"""Failed attempts that are listed."""
LEVELS = 6
"""Colour steps of the map; more cannot be told apart."""
SLOW_SHARES = (0.25, 0.5, 0.7, 0.85, 1.15)
"""Upper ends of the steps as shares of the median: a link under half of its peers stands out, and what varies
by 15 % (the noise between whole runs) keeps the middle colour."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str
    level: str
    tip: str


@dataclass(frozen=True, slots=True)
class HeatView:
    """One map: either a table with figures, or a drawing with its slowest pairs."""

    title: str
    summary: str
    noun: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    """Labels of the rows."""
    rows: tuple[tuple[Cell, ...], ...]
    drawing: Markup | None
    folded: str | None
    slowest: tuple[tuple[str, str, str], ...]
    """Pair, bandwidth, share of the median."""
    levels: bool
    """The colours mean speed, so the key to them is shown."""


@dataclass(frozen=True, slots=True)
class LinksView:
    """All maps and what failed."""

    maps: tuple[HeatView, ...]
    failures: tuple[tuple[str, str, str], ...]
    """Pair, kind and error."""
    attempts: int


Names = Callable[[int], str]


def view_links(evidence: Evidence, caps: Caps) -> LinksView:
    """Return the heat maps of a report's evidence."""
    hosts = {node.node: node.host for node in evidence.nodes}

    def host(number: int) -> str:
        return hosts.get(number, f"node {number}")

    maps = []
    for level in dict.fromkeys(row.level for row in evidence.pairs):
        rows = [row for row in evidence.pairs if row.level == level and is_known(row.bandwidth)]
        if rows:
            maps.append(_speed_map(level, rows, host if level == "node" else str, caps))
    for kind in dict.fromkeys(link.kind for link in evidence.links):
        found = [link for link in evidence.links if link.kind == kind and link.source != link.target]
        if found:
            maps.append(_reach_map(kind, found, host, caps))
    broken = [link for link in evidence.links if not link.ok]
    failures = tuple(
        (f"{host(link.source)} → {host(link.target)}", link.kind, _describe(link))
        for link in caps.take(broken, FAILURES_SHOWN, "connections that failed")
    )
    return LinksView(tuple(maps), failures, len(evidence.links))


def _describe(link: Link) -> str:
    parts = [clean(link.error or "no connection")]
    if link.address:
        parts.append(link.address if link.port is None else f"{link.address} port {link.port}")
    if link.bytes_passed is not None and link.bytes_failed is not None:
        parts.append(f"{link.bytes_passed:,} bytes pass, {link.bytes_failed:,} do not")
    return ", ".join(parts)


def _speed_map(noun: str, rows: list[PairRow], name: Names, caps: Caps) -> HeatView:
    """A map of bandwidth; of several measurements of a pair the best counts (the first may be a warm-up)."""
    best: dict[tuple[int, int], float] = {}
    for row in rows:
        key = (row.source, row.target)
        best[key] = max(best.get(key, 0.0), row.bandwidth)
    middle = median(best.values())
    summary = f"{count(len(best), 'pair')}, median {format_bandwidth(middle)}"

    def level(value: float) -> str:
        share = value / middle if middle else 1.0
        return f"q{sum(share >= end for end in SLOW_SHARES)}"

    ordered = sorted(best.items(), key=lambda item: item[1])[:SLOWEST_SHOWN]
    slowest = tuple(
        (f"{name(a)} → {name(b)}", format_bandwidth(speed), f"{speed / middle:.0%}" if middle else "unknown")
        for (a, b), speed in ordered
    )
    return _make_map(
        title=f"Bandwidth between {noun}s",
        summary=summary,
        noun=noun,
        cells={pair: (level(speed), format_bandwidth(speed), speed) for pair, speed in best.items()},
        name=name,
        slowest=slowest,
        caps=caps,
    )


def _reach_map(kind: str, links: list[Link], name: Names, caps: Caps) -> HeatView:
    """A map of attempts over TCP: reached or not."""
    words = {
        "rendezvous": "Rendezvous port reachable",
        "ephemeral": "Ephemeral ports reachable",
        "large": "Large messages",
    }
    failed = sum(not link.ok for link in links)
    cells: dict[tuple[int, int], tuple[str, str, float]] = {}
    for link in links:
        key = (link.source, link.target)
        if link.ok and key not in cells:
            cells[key] = ("ok", "ok", 1.0)
        elif not link.ok:
            cells[key] = ("bad", "failed", 0.0)
    summary = f"{count(len(links), 'attempt')}, " + (f"{failed:,} failed" if failed else "none failed")
    return _make_map(
        title=words.get(kind, kind),
        summary=summary,
        noun="node",
        cells=cells,
        name=name,
        slowest=(),
        caps=caps,
    )


def _make_map(
    *,
    title: str,
    summary: str,
    noun: str,
    cells: dict[tuple[int, int], tuple[str, str, float]],
    name: Names,
    slowest: tuple[tuple[str, str, str], ...],
    caps: Caps,
) -> HeatView:
    """Choose between a table, a drawing, and a drawing of blocks.

    Args:
        title: heading of the map.
        summary: how many and what is usual.
        noun: rank or node.
        cells: (source, target) -> colour class, words, and a number whose smallest value stands for a block.
        name: words for a rank or node.
        slowest: rows of the table beside a drawing; empty for a map that does not show speed.
        caps: where folding is written down.
    """
    members = sorted({number for pair in cells for number in pair})
    speed = bool(slowest)
    if len(members) <= NUMBERS_SHOWN:
        sources, targets = (sorted({pair[end] for pair in cells}) for end in (0, 1))
        rows = tuple(
            tuple(_cell(a, b, cells.get((a, b)), name, noun, speed) for b in targets) for a in sources
        )
        columns, labels = tuple(name(n) for n in targets), tuple(name(n) for n in sources)
        return HeatView(title, summary, noun, columns, labels, rows, None, None, (), speed)
    block = math.ceil(len(members) / CELLS_SHOWN)
    folded = None
    if block > 1:
        side = math.ceil(len(members) / block)
        folded = f"{len(members):,} {noun}s in {side} blocks of up to {block}; a block shows its worst pair"
        caps.note(f"{title.lower()}: {folded}")
    place = {number: index // block for index, number in enumerate(members)}
    worst: dict[tuple[int, int], tuple[str, str, float]] = {}
    for (a, b), cell in cells.items():
        key = (place[a], place[b])
        if key not in worst or cell[2] < worst[key][2]:
            worst[key] = cell
    ident = "map-" + "".join(c for c in title.lower() if c.isalpha())
    side = max(place.values()) + 1
    drawing = _draw(ident, title, summary, side, worst)
    return HeatView(title, summary, noun, (), (), (), drawing, folded, slowest, speed)


def _cell(a: int, b: int, found: tuple[str, str, float] | None, name: Names, noun: str, speed: bool) -> Cell:
    if a == b:
        return Cell("", "self", "")
    prefix = f"{noun} " if noun == "rank" else ""
    pair = f"{prefix}{name(a)} → {prefix}{name(b)}"
    if found is None:
        return Cell("·", "none", f"{pair}: not measured" if speed else f"{pair}: not tried")
    level, words, value = found
    text = f"{value:.3g}" if speed else words
    return Cell(text, level, f"{pair}: {words}")


def _draw(
    ident: str, title: str, summary: str, side: int, worst: dict[tuple[int, int], tuple[str, str, float]]
) -> Markup:
    """Draw one path per colour, so that 4,096 cells cost some ten bytes each."""
    size = 8
    drawing = Drawing(side * size, side * size, "heat", title=title, ident=ident, description=summary)
    drawing.rect(0, 0, side * size, side * size, "heat-back")
    paths: dict[str, list[str]] = {}
    for (row, column), (level, _, _) in sorted(worst.items()):
        x, y = column * size, row * size
        paths.setdefault(level, []).append(f"M{x} {y}h{size - 1}v{size - 1}h-{size - 1}z")
    for level, parts in paths.items():
        drawing.path("".join(parts), level)
    return drawing.markup()
