"""What went wrong without an error: which ranks agree with which, over the steps, batches and epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import StepLook
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.pictures.marks import Figure, Key
from ddpdoctor.report.html.pictures.peers import find_readers, find_replicas
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.html.trained import join_shares, join_steps
from ddpdoctor.report.words import clip, count, is_known

ROWS_SHOWN = 64
"""Rows of a map; ranks are joined in blocks where they are more, and a block shows its worst."""
COLUMNS_SHOWN = 24
TENSORS_SHOWN = 24
LEVELS = ((0.1, "h3"), (0.01, "h2"), (1e-4, "h1"), (0.0, "h0"))
"""Difference of a norm from the usual one, as a part of it, from which on a cell has this color."""
UNKNOWN = "h3"
"""Color of a cell whose bits differ, where no norm says by how much."""
EQUAL, NOTHING = "same", "nothing"
KEYS = (
    Key("same", "equal on its replicas"),
    Key("h0", "differs, norm by less than 0.01 %"),
    Key("h1", "differs, by less than 1 %"),
    Key("h2", "differs, by less than 10 %"),
    Key("h3", "differs by 10 % or more, or by an unknown amount"),
)
LEFT, WIDTH = 78.0, 430.0

Cells = Mapping[int, tuple[str, str]]
"""Rank (or row) -> class and tool tip, of one column."""


def draw_replicas(evidence: Evidence, caps: Caps) -> tuple[Figure, ...]:
    """Draw parameters and gradients of each rank over the steps that were compared; none where no ranks were."""
    looks = _choose(join_steps(evidence), caps)
    sets = find_replicas(evidence, looks[0].optimizer) if looks else []
    found = []
    for what in ("parameters", "gradients"):
        pairs = [(look, look.values if what == "parameters" else look.gradients) for look in looks]
        columns = [(_name(look), _rate(shares, look, what, sets)) for look, shares in pairs if shares]
        figure = _draw(what, f"{what.capitalize()} by step", "step", columns, KEYS, caps)
        if figure is not None:
            found.append(figure)
    return tuple(found)


def draw_tensors(evidence: Evidence, caps: Caps) -> Figure | None:
    """Draw how much each tensor differs over the steps that list some; None where none is listed."""
    looks = [look for look in join_steps(evidence) if look.tensors]
    looks = looks[-COLUMNS_SHOWN:]
    names = list(dict.fromkeys(each.name for look in looks for each in look.tensors if len(each.values) > 1))
    names = list(caps.take(names, TENSORS_SHOWN, "tensors of the map"))
    columns = []
    for look in looks:
        cells: dict[int, tuple[str, str]] = {}
        for each in look.tensors:
            if each.name in names:
                apart = _differ(each.values)
                words = "equal" if len(each.values) < 2 else _describe(apart)
                css = EQUAL if len(each.values) < 2 else _level(apart)
                cells[names.index(each.name)] = css, f"{each.name}, {_name(look, long=True)}: {words}"
        columns.append((_name(look), cells))
    labels = {row: clip(name, 28) for row, name in enumerate(names)}
    return _plot("tensors", "Tensors that differ, by step", columns, labels, KEYS, left=210.0)


def draw_batches(evidence: Evidence, caps: Caps) -> Figure | None:
    """Draw which ranks were given the same of the first batches; None where none were compared."""
    sets = find_readers(evidence)
    joined: dict[tuple[str, int, int, int], tuple[Share, ...]] = {}
    for node in evidence.training:
        for look in node.batches:
            key = look.loader, look.epoch, look.index, look.model
            joined[key] = join_shares(joined.get(key, ()), look.batches)
    columns = []
    for (loader, epoch, index, _), shares in sorted(joined.items())[:COLUMNS_SHOWN]:
        which = f"epoch {epoch}, batch {index}" + (f" of {loader}" if loader else "")
        cells = {}
        for share in shares:
            for rank in share.ranks:
                others = [each for each in share.ranks if each != rank and _meet(sets, rank, each)]
                twice = bool(others)
                words = f"the same as on {RankSet(others)}" if twice else "on this rank only"
                cells[rank] = ("h3" if twice else EQUAL), f"rank {rank}, {which}: {words}"
        columns.append((f"{epoch}.{index}", cells))
    keys = (Key("same", "samples of its own"), Key("h3", "the same samples as another rank"))
    return _draw("batches", "First batches, by epoch and number", "batch", columns, keys, caps)


def draw_orders(evidence: Evidence, caps: Caps) -> Figure | None:
    """Draw which epochs had the order of an earlier one; None where less than two were seen."""
    seen: dict[tuple[str, int], set[str]] = {}
    columns: dict[int, dict[int, tuple[str, str]]] = {}
    looks = sorted((look for node in evidence.training for look in node.epochs), key=lambda each: each.number)
    for look in looks:
        for rank in look.ranks:
            if look.compared:
                known = seen.setdefault((look.loader, rank), set())
                again = look.digest in known
                words = "the order of an earlier epoch" if again else "an order of its own"
                tip = f"rank {rank}, epoch {look.number}: {words}"
                cell = ("h3" if again else EQUAL), tip
                column = columns.setdefault(look.number, {})
                if again or rank not in column:
                    column[rank] = cell
                known.add(look.digest)
    if len(columns) < 2:
        return None
    keys = (Key("same", "an order of its own"), Key("h3", "the order of an earlier epoch"))
    listed = [(str(number), cells) for number, cells in sorted(columns.items())]
    return _draw("orders", "Order of the samples, by epoch", "epoch", listed[:COLUMNS_SHOWN], keys, caps)


def _choose(looks: Sequence[StepLook], caps: Caps) -> list[StepLook]:
    """Return the looks of the optimizer whose replicas differ first, else of the first one."""
    apart = next((look.optimizer for look in looks if len(look.values) > 1 or len(look.gradients) > 1), None)
    first = apart if apart is not None else looks[0].optimizer if looks else 0
    chosen = [look for look in looks if look.optimizer == first]
    if len({look.optimizer for look in looks}) > 1:
        caps.note(f"map of replicas: optimizer {first} of {len({look.optimizer for look in looks})}")
    return list(caps.take(chosen, COLUMNS_SHOWN, "steps in the map of replicas"))


def _name(look: StepLook, *, long: bool = False) -> str:
    if look.final:
        return "at the end" if long else "end"
    return f"step {look.step:,}" if long else f"{look.step:,}"


def _usual(shares: Sequence[Share]) -> Share:
    """Return what most ranks have; of equally many, what the lowest rank has."""
    return max(shares, key=lambda share: (len(share.ranks), -min(share.ranks, default=0)))


def _meet(sets: Sequence[RankSet], rank: int, other: int) -> bool:
    return any(rank in each and other in each for each in sets)


def _restrict(shares: Sequence[Share], ranks: RankSet) -> list[Share]:
    """Return who agrees with whom among some ranks."""
    cut = [replace(share, ranks=RankSet(rank for rank in share.ranks if rank in ranks)) for share in shares]
    return [share for share in cut if share.ranks]


def _rate(
    shares: Sequence[Share], look: StepLook, what: str, sets: Sequence[RankSet]
) -> dict[int, tuple[str, str]]:
    """Return the cell of each rank: equal to what its replicas hold, or by how much its worst tensor differs."""
    cells: dict[int, tuple[str, str]] = {}
    for peers in sets:
        own = _restrict(shares, peers)
        usual = _usual(own) if own else None
        for share in own:
            for rank in share.ranks:
                where = f"rank {rank}, {_name(look, long=True)}"
                if share is usual:
                    cells.setdefault(rank, (EQUAL, f"{where}: as on {count(len(share.ranks), 'rank')}"))
                else:
                    apart = _worst(look, what, rank, peers)
                    cells[rank] = _level(apart), f"{where}: {_describe(apart)}"
    return cells


def _worst(look: StepLook, what: str, rank: int, peers: RankSet) -> float | None:
    """Return the largest difference of one rank's norms from its replicas'; None where no norm is known."""
    found = []
    for tensor in look.tensors:
        shares = _restrict(tensor.values if what == "parameters" else tensor.gradients, peers)
        own = next((share for share in shares if rank in share.ranks), None)
        if own is not None and len(shares) > 1:
            found.append(_apart(own, _usual(shares)))
    known = [each for each in found if each is not None]
    return max(known, default=None)


def _differ(shares: Sequence[Share]) -> float | None:
    usual = _usual(shares) if shares else None
    known = [_apart(share, usual) for share in shares if usual is not None and share is not usual]
    return max((each for each in known if each is not None), default=None)


def _apart(share: Share, usual: Share) -> float | None:
    if not (is_known(share.norm) and is_known(usual.norm)):
        return None
    largest = max(abs(share.norm), abs(usual.norm))
    return abs(share.norm - usual.norm) / largest if largest else 0.0


def _level(apart: float | None) -> str:
    if apart is None or not math.isfinite(apart):
        return UNKNOWN
    return next(css for least, css in LEVELS if apart >= least)


def _describe(apart: float | None) -> str:
    return "differs" if apart is None else f"differs, norm by {100 * apart:.2g} %"


def _draw(
    ident: str, title: str, noun: str, columns: Sequence[tuple[str, Cells]], keys: Sequence[Key], caps: Caps
) -> Figure | None:
    """Draw a map of ranks; of many, blocks that show their worst."""
    ranks = sorted({rank for _, cells in columns for rank in cells})
    if len(ranks) < 2:
        return None
    block = math.ceil(len(ranks) / ROWS_SHOWN)
    if block == 1:
        return _plot(ident, title, columns, {rank: str(rank) for rank in ranks}, keys, prefix="rank ")
    caps.note(f"{title}: {len(ranks):,} ranks in blocks of up to {block}; a block shows its worst rank")
    groups = [ranks[start : start + block] for start in range(0, len(ranks), block)]
    folded = []
    for name, cells in columns:
        worst = {}
        for row, group in enumerate(groups):
            listed = [cells[rank] for rank in group if rank in cells]
            if listed:
                worst[row] = max(listed, key=lambda cell: (cell[0] != EQUAL, cell[0]))
        folded.append((name, worst))
    labels = {row: str(RankSet(group)) for row, group in enumerate(groups)}
    return _plot(ident, title, folded, labels, keys)


def _plot(
    ident: str,
    title: str,
    columns: Sequence[tuple[str, Cells]],
    labels: Mapping[int, str],
    keys: Sequence[Key],
    *,
    left: float = LEFT,
    prefix: str = "",
) -> Figure | None:
    if not columns or not labels:
        return None
    row_height = max(5.0, min(28.0, 200 / len(labels)))
    width = min(46.0, WIDTH / len(columns))
    used = {css for _, cells in columns for css, _ in cells.values()}
    differing = sum(css != EQUAL for _, cells in columns for css, _ in cells.values())
    drawing = Drawing(
        left + WIDTH, row_height * len(labels) + 20, "heat map-of-ranks", ident=f"map-{ident}",
        title=title,
        description=f"{count(len(labels), 'row')} by {count(len(columns), 'column')}; {differing} cells stand out.",
    )  # fmt: skip
    every = max(1, math.ceil(13 / row_height))
    for row, (key, label) in enumerate(labels.items()):
        y = row * row_height
        if row % every == 0:
            drawing.text(left - 8, y + row_height / 2 + 4, f"{prefix}{label}", "tick", "end")
        for column, (_, cells) in enumerate(columns):
            css, tip = cells.get(key, (NOTHING, ""))
            drawing.rect(left + column * width, y, width - 2, row_height - 2, css, tip or None)
    longest = max(len(name) for name, _ in columns)
    each = max(1, math.ceil((6.5 * longest + 6) / width))
    for column, (name, _) in enumerate(columns):
        if column % each == 0:
            x = left + column * width + width / 2 - 1
            drawing.text(x, row_height * len(labels) + 14, name, "tick", "middle")
    shown = tuple(key for key in keys if key.css in used)
    return Figure(title, drawing.markup(), shown)
