"""What the live view shows: a line of where the time goes, and a row for each rank or for those that do the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.training import timing
from ddpdoctor.facts.wire import FORWARD, WRAP
from ddpdoctor.text.characters import clip, width_of, wrap
from ddpdoctor.text.paper import Paper
from ddpdoctor.watch.view.rank_progress import (
    BETWEEN,
    ENDED,
    GONE,
    IN_CALL,
    INSIDE,
    STARTING,
    Progress,
    RankProgress,
)

LEAST_ROWS = 10
"""Fewest rows of a terminal in which something is drawn; the view has half of the terminal's rows."""
LEAST_SHARE = 0.005
"""Smallest share of a step for which a phase is named."""
MOST_SAID = 3
"""Lines of what the monitor says."""
QUIET_S = 2.0
"""A rank that is behind and has called nothing for so long is marked."""
HEADS = ("rank", "step", "doing", "last collective", "behind", "late", "mem", "cpu")
NARROW = {"rank": 4, "step": 5, "behind": 6, "late": 6, "mem": 5, "cpu": 4}
"""Columns of numbers, and how wide they are at least: they shall not move with each digit."""
MOST_NARROW = 14
"""Columns that the ranks and steps of folded rows take at most."""
LEAST_ROOM = 34
"""Columns that the two wide ones want; where they do not get them, the last narrow ones go."""
GAPS = {"rank": "  ", "step": "  ", "doing": "  "}


@dataclass(frozen=True, slots=True)
class Row:
    """What the view shows in one line: of one rank, or of several that do the same."""

    ranks: RankSet
    first: RankProgress
    """The rank that is shown."""
    steps: tuple[int, int] | None = None
    numbers: tuple[int, int] = (0, 0)
    """Lowest and highest number of the last collective."""


def fold(ranks: Sequence[RankProgress], most: int) -> tuple[list[Row], int]:
    """Return at most so many rows, and how many ranks are left out.

    Where the ranks are too many for one each, those that do the same are one, and the fewest come first: a rank that
    differs is what one looks for.
    """
    if len(ranks) <= most:
        return [_merge([each]) for each in ranks], 0
    kinds: dict[tuple[object, ...], list[RankProgress]] = {}
    for each in ranks:
        key = (
            each.phase,
            each.op,
            each.place,
            each.last,
            each.last_place,
            each.raised,
            each.behind > 0,
            each.named,
        )
        kinds.setdefault(key, []).append(each)
    rows = [_merge(alike) for alike in sorted(kinds.values(), key=lambda alike: (len(alike), alike[0].rank))]
    if len(rows) <= most:
        return rows, 0
    return rows[: most - 1], sum(len(row.ranks) for row in rows[most - 1 :])


def _merge(alike: Sequence[RankProgress]) -> Row:
    steps = [each.step for each in alike if each.step is not None]
    numbers = [each.last_number for each in alike]
    loads = [each.cpu for each in alike if each.cpu is not None]
    shown = replace(
        alike[0],
        since_s=min(each.since_s for each in alike),
        behind=max(each.behind for each in alike),
        late_s=max((each.late_s for each in alike if each.late_s is not None), default=None),
        memory=max((each.memory for each in alike if each.memory is not None), default=None),
        cpu=sum(loads) / len(loads) if loads else None,
        exact=all(each.exact for each in alike),
    )
    return Row(
        RankSet(each.rank for each in alike),
        shown,
        (min(steps), max(steps)) if steps else None,
        (min(numbers), max(numbers)),
    )


def make_lines(
    progress: Progress,
    paper: Paper,
    rows: int,
    *,
    title: Sequence[str] = (),
    said: tuple[str, str] | None = None,
) -> list[str]:
    """Return the view.

    Args:
        progress: what is shown.
        paper: gives width, colours and characters.
        rows: most lines.
        title: what stands on the line between the job's output and the view.
        said: stage and sentence of the monitor.
    """
    ranks, named = _take_common_name(progress.ranks)
    lines = [_rule([*title, *named], paper)]
    spent = describe_spent(ranks)
    if spent and rows > LEAST_ROWS // 2:
        lines.append(paper.style(clip(paper.clean(spent), paper.width, paper.clean("…")), "dim"))
    if said is not None:
        style = "red" if said[0] in ("proved", "confirmed") else "yellow"
        wrapped = wrap(paper.clean(said[1]), paper.width)
        if len(wrapped) > MOST_SAID:
            wrapped[MOST_SAID - 1 :] = [
                clip(" ".join(wrapped[MOST_SAID - 1 :]), paper.width, paper.clean("…"))
            ]
        lines += [paper.style(line, style) for line in wrapped[: max(1, rows - 4)]]
    room = rows - len(lines) - 1
    if not ranks:
        return [*lines, paper.style("no rank has been started yet", "dim")]
    if room < 1:
        return lines
    shown, left_out = fold(ranks, room)
    lines += _table(shown, paper)
    if left_out:
        lines.append(paper.style(f"and {left_out} more ranks", "dim"))
    return lines


def _take_common_name(ranks: Sequence[RankProgress]) -> tuple[Sequence[RankProgress], list[str]]:
    """Return the name that the program gives to what all ranks do, and the ranks without it."""
    names = {each.named for each in ranks if each.alive}
    (name,) = names if len(names) == 1 else (None,)
    return ([replace(each, named=None) for each in ranks], [name]) if name else (ranks, [])


def describe_spent(ranks: Sequence[RankProgress]) -> str:
    """Return where the time of a step goes, as a mean over the ranks; no words where none has written it down."""
    told = [each.spent for each in ranks if each.spent]
    means = dict(
        zip(timing.PHASES, (sum(took) / len(told) for took in zip(*told, strict=True)), strict=False)
    )
    whole = sum(means.values())
    if not whole:
        return ""
    means[timing.DATA] += means.pop(timing.STARTING)
    order = (timing.DATA, timing.FORWARD, timing.BACKWARD, timing.OPTIMIZER, timing.CALLS, timing.OTHER)
    parts = [f"{phase} {means[phase] / whole:.0%}" for phase in order if means[phase] / whole >= LEAST_SHARE]
    return f"{_name_lag(whole) or 'below 1 ms'} a step: {' · '.join(parts)}"


def _rule(title: Sequence[str], paper: Paper) -> str:
    bar = paper.clean("-" if paper.clean("─") != "─" else "─")
    text = clip(f"{bar * 2} {paper.clean(' · '.join(title))}", paper.width - 3, paper.clean("…")) + " "
    return paper.style(text + bar * (paper.width - width_of(text)), "dim")


def _table(rows: Sequence[Row], paper: Paper) -> list[str]:
    """Return a line of heads and one for each row; the two wide columns share what the narrow ones leave."""
    counted = any(row.steps and not row.first.forwards for row in rows)
    columns = {head: [_name_cell(head, row, paper) for row in rows] for head in NARROW}
    if not any(columns["late"]):
        del columns["late"]  # the operation has room in its place
    widths = {head: max(NARROW[head], *map(width_of, cells)) for head, cells in columns.items()}
    for head in ("cpu", "mem", "late"):
        if _room(widths, paper) < LEAST_ROOM:
            widths.pop(head, None)
    room = max(LEAST_ROOM // 2, _room(widths, paper))
    widths["last collective"] = min(44, room * 3 // 5)
    widths["doing"] = min(48, room - widths["last collective"])
    columns["doing"] = [_choose(describe_phase(row.first), widths["doing"], paper) for row in rows]
    columns["last collective"] = [
        _choose(describe_last(row), widths["last collective"], paper) for row in rows
    ]
    heads = {head: "calls" if head == "step" and counted else head for head in HEADS}
    lines = [_line(heads, widths, paper, "dim")]
    for number, row in enumerate(rows):
        cells = {head: cells[number] for head, cells in columns.items()}
        lines.append(_line(cells, widths, paper, _choose_style(row.first)))
    return lines


def _name_cell(head: str, row: Row, paper: Paper) -> str:
    one = row.first
    if head == "rank":
        return clip(str(row.ranks), MOST_NARROW, paper.clean("…"))
    if head == "step":
        return clip(_range(row.steps, "" if one.exact else "~"), MOST_NARROW, paper.clean("…"))
    if head == "behind":
        return str(one.behind) if one.behind else ""
    if head == "late":
        return _name_lag(one.late_s)
    if head == "mem":
        return _name_size(one.memory)
    return f"{one.cpu:.0%}" if one.cpu is not None else ""


def _room(widths: dict[str, int], paper: Paper) -> int:
    """Return what these columns leave for the two wide ones."""
    return paper.width - sum(width + len(GAPS.get(head, " ")) for head, width in widths.items()) - 3


def _line(cells: Mapping[str, str], widths: Mapping[str, int], paper: Paper, style: str | None) -> str:
    text = ""
    for head in HEADS:
        if head in widths:
            pad = " " * max(0, widths[head] - width_of(cells[head]))
            text += (pad + cells[head] if head in NARROW else cells[head] + pad) + GAPS.get(head, " ")
    return paper.style(clip(text.rstrip(), paper.width, ""), style)


def _choose(texts: Iterable[str], width: int, paper: Paper) -> str:
    """Return the first that fits; the last one cut where none does."""
    text = ""
    for each in texts:
        text = paper.clean(each)
        if width_of(text) <= width:
            return text
    return clip(text, width, paper.clean("…"))


def _choose_style(one: RankProgress) -> str | None:
    if one.phase == GONE:
        return "red"
    if one.phase in (ENDED, STARTING):
        return "dim"
    return "yellow" if one.behind and one.since_s >= QUIET_S else None


def describe_phase(one: RankProgress) -> list[str]:
    """Return what a rank does in words, the longest text first."""
    if one.phase == ENDED:
        return ["has ended"]
    if one.phase == GONE:
        return ["its process is gone", "is gone"]
    time_text = name_time(one.since_s)
    what = {STARTING: "starting", INSIDE: "forward"}.get(one.phase, "")
    if one.phase == IN_CALL:
        op = one.op or "a call"
        what = "wrapping the model" if op == WRAP else f"in {op}"
        if one.peer is not None and not one.open:
            what += f" {'to' if 'send' in op else 'from'} {one.peer}"
    elif one.phase == BETWEEN:
        after = "forward" if one.op == FORWARD else one.op
        of_last = one.op == one.last and one.place == one.last_place
        what = f"outside, after {after}" if not of_last else "outside"
        if one.op == FORWARD:
            what = "after forward pass"
        if one.raised:
            what = f"{after} has raised"
    words = f"{what} {time_text}".rstrip()
    place = one.place if not (one.open or one.place == one.last_place) else None
    texts = [f"{words} · {place}"] if place else []
    if one.named:
        texts = [f"{one.named}: {text}" for text in (*texts, words)] + texts
    texts.append(words)
    if what.startswith("outside,"):
        texts.append(f"outside {time_text}".rstrip())
    if one.open:
        texts.append(f"in it {time_text}".rstrip())
    return texts


def describe_last(row: Row) -> list[str]:
    """Return the last collective in words, the longest text first."""
    one = row.first
    if one.last is None:
        return [""]
    number = f"#{_range(row.numbers)}"
    place = f" {one.last_place}" if one.last_place else ""
    return [f"{number} {one.last}{place}", f"{number}{place}" if place else number, f"{number} {one.last}"]


def _range(ends: tuple[int, int] | None, mark: str = "") -> str:
    if ends is None:
        return ""
    low, high = ends
    return f"{mark}{low}" if low == high else f"{mark}{low}-{high}"


def name_time(seconds: float) -> str:
    """Return a time with its unit; nothing where it is below a second."""
    if seconds < 1:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _name_lag(seconds: float | None) -> str:
    """Return a lag; nothing where it is below a millisecond."""
    if seconds is None or seconds < 0.001:
        return ""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _name_size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / 1e9:.1f}G" if size >= 1e9 else f"{size / 1e6:.0f}M"


def name_clock(seconds: float) -> str:
    """Return how long the job has run, as h:mm:ss or mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
