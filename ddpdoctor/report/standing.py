"""Where the ranks of a job stand, in lines of text: what each does, and their stacks as one tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.native import name_native, telling_frame
from ddpdoctor.evidence.standstill import BUSY_SHARE, Stand, Standstill
from ddpdoctor.report.stacktree import Branch, build_tree, is_foreign, is_in_backward, name_place, walk
from ddpdoctor.report.words import count, format_ranks, format_seconds
from ddpdoctor.text.paper import Paper

LABEL = 9
"""Columns of the label with the gap after it, as for findings."""
GROUPS_SHOWN, ROWS_SHOWN, FORKS_SHOWN = 8, 40, 6
"""Groups of ranks, rows of the tree and branches of a fork that are shown without -v."""
HERE, FUNCTION, PLACE = 30, 26, 44
"""Most columns of the tree for ranks, function and place."""
SOURCE = 16
"""Fewest columns in which a source line is worth showing."""
WAITED_S = 1.0
"""A wait that is worth a word."""
STATES = {
    "R": "running", "S": "sleeping", "D": "in an uninterruptible wait", "T": "stopped by a signal", "t": "traced",
    "Z": "gone",
}  # fmt: skip


def describe_movement(look: Standstill) -> str:
    """Return in a few words who moves and who waits, for a look in which something moved."""
    living = [stand for stand in look.stands if stand.alive]
    movers = [stand for stand in living if _is_moving(stand)]
    waiting = [stand for stand in living if stand.call is not None and stand not in movers]
    rest = [stand for stand in living if stand.call is None and stand not in movers]
    if not movers:  # only the numbers of their calls tell
        return f"{_name(living, look)} are making progress"
    words = f"{_name(movers, look)} made progress"
    longest = max((stand.asleep_s or 0.0 for stand in waiting), default=0.0)
    if longest >= WAITED_S:
        words += f"; {_name(waiting, look)} waited meanwhile, for {format_seconds(longest)} so far"
    return words + (f"; {_name(rest, look)} did not" if rest else "")


def _is_moving(stand: Stand) -> bool:
    # Who waits in a call may spin meanwhile: that it runs says nothing then.
    computes = stand.call is None and (stand.state == "R" or (stand.cpu_share or 0.0) >= BUSY_SHARE)
    return computes or stand.frames != stand.frames_before


def _name(stands: Sequence[Stand], look: Standstill) -> str:
    return format_ranks(RankSet(stand.rank for stand in stands), len(look.stands))


def put_stands(paper: Paper, look: Standstill, *, verbose: bool) -> None:
    """Write what the ranks do, and the tree of their stacks."""
    size = look.world_size or len(look.stands)
    groups = _group(look.stands)
    for number, group in enumerate(groups if verbose else groups[:GROUPS_SHOWN]):
        ranks = format_ranks(RankSet(stand.rank for stand in group), size)
        _put_label(paper, "ranks" if number == 0 else "", f"{ranks}: {_describe(group)}")
    if len(groups) > GROUPS_SHOWN and not verbose:
        _put_label(paper, "", f"… {len(groups) - GROUPS_SHOWN} more groups (-v shows them)")
    tree = build_tree(look.stands)
    if tree.children:
        paper.gap()
        _put_tree(paper, tree, verbose=verbose)


def _put_label(paper: Paper, label: str, text: str) -> None:
    paper.put(text, label=label, indent=2, hang=2 + LABEL, label_style="dim")


def _group(stands: Sequence[Stand]) -> list[list[Stand]]:
    """Return ranks that do the same, those of the most ranks first."""
    groups: dict[tuple[object, ...], list[Stand]] = {}
    for stand in stands:
        own = next((frame for frame in stand.frames if not is_foreign(frame)), None)
        call = (stand.call.op, stand.call.ordinal, stand.call.group) if stand.call is not None else None
        line = (own.file, own.line) if own is not None else None
        inside = telling_frame(stand.native) if stand.call is None else None
        groups.setdefault((stand.alive, call, line, inside, stand.state, stand.note), []).append(stand)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))


def _describe(group: Sequence[Stand]) -> str:
    first = group[0]
    if not first.alive:
        if first.signal is not None:
            return f"gone, signal {first.signal}"
        return f"gone, exit code {first.exit_code}" if first.exit_code is not None else "gone"
    parts = []
    if first.call is not None:
        number = f" #{first.call.ordinal}" if first.call.ordinal else ""
        parts.append(f"in {first.call.op}{number}")
    elif first.frames:
        parts.append("in the backward pass" if is_in_backward(first) else "outside of any collective")
    states = Counter(stand.state for stand in group if stand.state is not None)
    if states:
        parts.append(STATES.get(states.most_common(1)[0][0] or "", "state unknown"))
    shares = [stand.cpu_share for stand in group if stand.cpu_share is not None]
    if shares:
        low, high = min(shares), max(shares)
        parts.append(
            f"{low:.0%} of a core" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%} of a core"
        )
    asleep = [stand.asleep_s for stand in group if stand.asleep_s is not None]
    if 2 * len(asleep) >= len(group) and min(asleep) >= 1.0:  # the kernel forgets it of some
        parts.append(f"main thread last ran {format_seconds(min(asleep))} ago")
    channels = {stand.wait_channel for stand in group if stand.wait_channel}
    if len(channels) == 1:
        parts.append(channels.pop())
    native = telling_frame(first.native)
    if native is not None and first.call is None:
        parts.append(f"in {name_native(native)}")
    if not first.frames and native is None:
        parts.append("stack not readable")
    pids = [stand.pid for stand in group]
    if len(pids) <= 4:
        parts.append(f"pid {', '.join(map(str, pids))}")
    return ", ".join(parts)


def _put_tree(paper: Paper, tree: Branch, *, verbose: bool) -> None:
    most = len(tree.ranks) if verbose else FORKS_SHOWN
    rows: list[tuple[tuple[str, str, str], str, bool]] = []
    before: RankSet | None = None
    for depth, branch, missing in walk(tree, most):
        if branch.frame is None:
            places = count(len(branch.children), "more place")
            rows.append(((_say_ranks(branch.ranks), f"{'  ' * depth}… {places}", ""), "", False))
            before = None
            continue
        here = "" if branch.ranks == before and not missing else _say_ranks(branch.ranks, missing)
        before = branch.ranks
        frame = branch.frame
        row = (here, "  " * depth + frame.function, name_place(frame))
        rows.append((row, frame.source or "", not is_foreign(frame)))
    shown = rows if verbose else rows[:ROWS_SHOWN]
    here_size, function_size, place_size = _measure(paper, shown)
    left = paper.width - 2 - LABEL - here_size - function_size - place_size - 6
    for number, ((here, function, place), source, own) in enumerate(shown):
        cells: list[tuple[str, int, str | None]] = [("stacks", LABEL - 2, "dim")] if number == 0 else []
        cells += [(here, here_size, None), (function, function_size, None)]
        if own:
            cells.append((_clip_start(place, place_size), place_size, None))
            if source and left >= SOURCE:
                cells.append((source, left, None))
        else:  # it has no source: the place may take its columns
            cells.append((place, max(place_size, place_size + 2 + left), "dim"))
        paper.put_row(cells, indent=2 if number == 0 else 2 + LABEL)
    if len(rows) > len(shown):
        _put_label(paper, "", f"… {len(rows) - len(shown)} more places (-v shows them)")


def _measure(paper: Paper, rows: Sequence[tuple[tuple[str, str, str], str, bool]]) -> tuple[int, int, int]:
    """Return the columns for ranks, function and place."""
    here = min(HERE, max(paper.width_of(row[0]) for row, _, _ in rows))
    function = min(FUNCTION, max(paper.width_of(row[1]) for row, _, _ in rows))
    room = paper.width - 2 - LABEL - here - function - 4
    return (
        here,
        function,
        min(PLACE, room, max([12, *(paper.width_of(row[2]) for row, _, own in rows if own)])),
    )


def _clip_start(place: str, columns: int) -> str:
    """Return a path with its end, which says more than its beginning."""
    return place if len(place) <= columns else f"…{place[1 - columns :]}"


def _say_ranks(ranks: RankSet, missing: RankSet | None = None) -> str:
    both = f"here: {ranks} | not here: {missing}"
    return both if missing and len(both) <= HERE else f"here: {ranks}"
