"""Where the time of a step goes on each rank, and how late ranks come to where they meet, over all steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.timing import (
    BACKWARD,
    CALLS,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    PHASES,
    STARTING,
    RankTimes,
    Timing,
)
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.words import count, format_bytes, format_ranks, format_seconds, is_known, join_words

RANKS_SHOWN = 32
"""Ranks with a bar of their own; of more, those that come latest."""
CELLS_SHOWN = 64
"""Rows of the map of lags; ranks are joined in blocks where they are more."""
LEVELS = ((0.5, "q0"), (0.2, "q1"), (0.1, "q2"), (0.05, "q3"), (0.02, "q4"), (0.0, "q5"))
"""Lag, as a part of a usual step, from which on a cell has this colour."""
EXPOSED, STAGES = "exposed", "stages"
MEASURED = (EXPOSED, STAGES)
"""Parts that lie within phases, and are taken out of them."""
WITHIN = (FORWARD, BACKWARD, CALLS, OTHER)
"""Phases in which torch waits for shards and for other stages, in proportion to their length."""
PARTS = (
    (DATA, "p-data", "data"),
    (STARTING, "p-starting", "workers start"),
    (FORWARD, "p-forward", "forward"),
    (BACKWARD, "p-backward", "backward"),
    (EXPOSED, "p-exposed", "exposed communication"),
    (STAGES, "p-stages", "waiting for other stages"),
    (CALLS, "p-calls", "the script's own collectives"),
    (OPTIMIZER, "p-optimizer", "optimizer"),
    (OTHER, "p-other", "other Python"),
)
"""Parts of a bar in their order: name, class and words."""
_WIDTH, _LABEL = 640, 64
"""Width of the map of lags, and of the names of ranks beside it."""


@dataclass(frozen=True, slots=True)
class TimedRow:
    """One rank, or several of which the median is shown."""

    who: str
    bar: Markup
    step: str
    parts: tuple[str, ...]
    """Time of each part, in the order of the legend."""
    late: str
    memory: str


@dataclass(frozen=True, slots=True)
class TimedView:
    """What was seen of the time of steps."""

    summary: str
    legend: tuple[tuple[str, str], ...]
    """Class and words of the parts that are there."""
    rows: tuple[TimedRow, ...]
    measured: bool
    """Reductions are told apart from the backward."""
    remembers: bool
    """The memory of ranks is known."""
    lags: Markup | None
    folded: str | None


def view_timed(evidence: Evidence, caps: Caps) -> TimedView | None:
    """Return the view; None where no steps were timed."""
    pairs = [
        (rank, node.timing) for node in evidence.training for rank in node.timing.ranks if _is_whole(rank)
    ]
    if not pairs:
        return None
    parts = {rank.rank: _part(rank, timing) for rank, timing in pairs}
    shown = [part for part in PARTS if any(each[part[0]] for each in parts.values())]
    longest = max(sum(each.values()) for each in parts.values())
    memory = {
        each.rank: each.rss_peak_bytes
        for each in evidence.processes
        if each.role == "rank" and each.rank is not None and each.rss_peak_bytes
    }
    ordered = sorted(pairs, key=lambda pair: pair[0].rank)
    rest: list[RankTimes] = []
    if len(ordered) > RANKS_SHOWN:
        latest = sorted((rank for rank, _ in ordered), key=lambda rank: -(_middle(rank) or 0.0))
        chosen = {rank.rank for rank in latest[: RANKS_SHOWN - 1]}
        rest = [rank for rank, _ in ordered if rank.rank not in chosen]
        ordered = [pair for pair in ordered if pair[0].rank in chosen]
        caps.note(f"ranks with their own step times: the {len(ordered)} largest stragglers of {len(pairs):,}")
    rows = [
        _make_row(f"rank {rank.rank}", parts[rank.rank], shown, longest, _middle(rank), memory.get(rank.rank))
        for rank, _ in ordered
    ]
    if rest:
        rows.append(_make_rest(rest, parts, shown, longest))
    steps = max(timing.steps for _, timing in pairs)
    ranks = [rank for rank, _ in pairs]
    drawing, folded = _draw_lags(evidence, caps)
    return TimedView(
        f"A median step takes {format_seconds(median(rank.step_s for rank in ranks))}; medians over "
        f"{count(steps, 'step')}, without the first three.",
        tuple((css, words) for _, css, words in shown),
        tuple(rows),
        any(rank.exposed_s is not None for rank in ranks),
        bool(memory),
        drawing,
        folded,
    )


def _is_whole(rank: RankTimes) -> bool:
    """Whether each phase has a length; a saved report may hold anything."""
    return len(rank.seconds) == len(PHASES) and all(is_known(each) and each >= 0 for each in rank.seconds)


def _part(rank: RankTimes, timing: Timing) -> dict[str, float]:
    """Return the seconds of each part of a step: reductions, and Python behind a backward, taken out of it."""
    found = {name: rank.spend(name) for name, _, _ in PARTS if name not in MEASURED}
    times = max(timing.reductions, 0.0)
    exposed = min((rank.exposed_s or 0.0) * times, found[BACKWARD])
    after = min((rank.after_s or 0.0) * times, found[BACKWARD] - exposed)
    found[BACKWARD] -= exposed + after
    found[EXPOSED] = exposed
    found[OTHER] += after
    shards = timing.shards
    if shards is not None and shards.step_s > 0:
        found[EXPOSED] += _take(found, (shards.gather_s + shards.reduce_s) / shards.step_s)
    stages = timing.pipeline.ranks if timing.pipeline is not None else ()
    own = next((each for each in stages if each.rank == rank.rank and each.step_s > 0), None)
    found[STAGES] = _take(found, own.waiting_s / own.step_s) if own is not None else 0.0
    return found


def _take(found: dict[str, float], share: float) -> float:
    """Take a share of the whole step out of the phases that it lies within; return the seconds that were taken."""
    there = sum(found[name] for name in WITHIN)
    taken = min(max(share, 0.0) * sum(found.values()), there)
    for name in WITHIN:
        found[name] -= taken * found[name] / there if there else 0.0
    return taken


def _middle(rank: RankTimes) -> float | None:
    lags = [lag for lag in rank.lags if is_known(lag)]
    return median(lags) if lags else None


def _make_row(
    who: str,
    parts: dict[str, float],
    shown: Sequence[tuple[str, str, str]],
    longest: float,
    late: float | None,
    memory: int | None,
) -> TimedRow:
    drawing = Drawing(100, 6, "time", stretch=True)
    drawing.rect(0, 0, 100, 6, "t-back")
    x = 0.0
    for name, css, _ in shown:
        width = 100 * parts[name] / longest if longest else 0.0
        if width:
            drawing.rect(x, 0, width, 6, css)
        x += width
    return TimedRow(
        who,
        drawing.markup(),
        format_seconds(sum(parts.values())),
        tuple(format_seconds(round(parts[name], 5)) for name, _, _ in shown),
        format_seconds(round(late, 4)) if late is not None else "unknown",
        format_bytes(memory) if memory else "",
    )


def _make_rest(
    rest: Sequence[RankTimes],
    parts: dict[int, dict[str, float]],
    shown: Sequence[tuple[str, str, str]],
    longest: float,
) -> TimedRow:
    """Return a row of medians."""
    middle = {name: median(parts[rank.rank][name] for rank in rest) for name, _, _ in PARTS}
    lags = [lag for lag in map(_middle, rest) if lag is not None]
    late = median(lags) if lags else None
    return _make_row(f"median of {count(len(rest), 'other rank')}", middle, shown, longest, late, None)


def _draw_lags(evidence: Evidence, caps: Caps) -> tuple[Markup | None, str | None]:
    """Draw how late each rank came, over the steps."""
    rows: list[tuple[int, Timing, RankTimes]] = [
        (rank.rank, node.timing, rank)
        for node in evidence.training
        for rank in node.timing.ranks
        if _is_whole(rank) and node.timing.columns and _middle(rank) is not None
    ]
    if len(rows) < 2:
        return None, None
    rows.sort(key=lambda row: row[0])
    block = math.ceil(len(rows) / CELLS_SHOWN)
    groups = [rows[start : start + block] for start in range(0, len(rows), block)]
    folded = None
    if block > 1:
        folded = (
            f"{len(rows):,} ranks in {len(groups)} blocks of up to {block}; a block shows its slowest rank"
        )
        caps.note(f"lag of ranks: {folded}")
    last = max(1, *(min(timing.columns[-1] + timing.width - 1, timing.steps) for _, timing, _ in rows))
    step_s = median(rank.step_s for _, _, rank in rows)
    height = max(8.0, min(26.0, 120 / len(groups)))
    title = "Lag of ranks over the steps"
    drawing = Drawing(
        _LABEL + _WIDTH,
        height * len(groups) + 16,
        "heat lags",
        title=title,
        ident="lags",
        description=_describe(rows, step_s),
    )
    drawing.rect(_LABEL, 0, _WIDTH, height * len(groups), "heat-back")
    paths: dict[str, list[str]] = {}
    each_label = max(1, math.ceil(12 / height))
    for place, group in enumerate(groups):
        y = place * height
        if place % each_label == 0:
            numbers = RankSet(row[0] for row in group)
            drawing.text(_LABEL - 8, y + height / 2 + 4, str(numbers), "tick", "end")
        for first, width, lag in _join_lags(group):
            x, wide = _LABEL + _WIDTH * (first - 1) / last, _WIDTH * min(width, last - first + 1) / last
            wide = max(wide - 0.5, 0.3)
            paths.setdefault(_level(lag, step_s), []).append(
                f"M{x:.1f} {y:.1f}h{wide:.1f}v{height - 1:.1f}h-{wide:.1f}z"
            )
    for level, parts in paths.items():
        drawing.path("".join(parts), level)
    bottom = height * len(groups) + 13
    drawing.text(_LABEL, bottom, "step 1", "tick")
    drawing.text(_LABEL + _WIDTH, bottom, f"step {last:,}", "tick", "end")
    return drawing.markup(), folded


def _join_lags(group: Sequence[tuple[int, Timing, RankTimes]]) -> list[tuple[int, int, float]]:
    """Return first step, width and the largest lag of each column."""
    found: dict[tuple[int, int], float] = {}
    for _, timing, rank in group:
        for first, lag in zip(timing.columns, rank.lags, strict=False):
            if is_known(lag):
                key = first, timing.width
                found[key] = max(found.get(key, 0.0), lag)
    return [(first, width, lag) for (first, width), lag in sorted(found.items())]


def _level(lag: float, step_s: float) -> str:
    share = lag / step_s if step_s else 0.0
    return next(css for least, css in LEVELS if share >= least)


def _describe(rows: Sequence[tuple[int, Timing, RankTimes]], step_s: float) -> str:
    latest = sorted(((_middle(rank) or 0.0, number) for number, _, rank in rows), reverse=True)[:3]
    words = [f"rank {number} {format_seconds(round(lag, 4))}" for lag, number in latest]
    return (
        f"{count(len(rows), 'rank')}, steps of {format_seconds(step_s)}. Largest median lag: "
        f"{join_words(words)}. All ranks are in the table "
        f"({format_ranks(RankSet((number for number, _, _ in rows)))})."
    )
