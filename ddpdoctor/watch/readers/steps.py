"""What ranks wrote down of the steps of their optimizers, folded to who agrees with whom."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import (
    Born,
    LossWeights,
    OptimizerSetup,
    Reduced,
    Scaled,
    StateLook,
    StepLook,
    StepSite,
    WrapperLook,
    WrapperSetup,
)
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.facts.training_events import Step, Tensors
from ddpdoctor.facts.training_rows import WrapperRow
from ddpdoctor.watch.readers.agreement import (
    fold_field,
    fold_texts,
    order_shares,
)
from ddpdoctor.watch.readers.layouts import list_peers, read_pieces, tell_apart
from ddpdoctor.watch.readers.rank_steps import RankSteps, count_step, list_rows, list_steps
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.step_tensors import LISTED, drill, list_buffers

KINDS = frozenset({"tensors", "step"})
"""Events that tell of it."""
FIRST_LISTED = 4
"""Steps that are listed for the other nodes, besides the last one."""
DRILLED = 6
"""Steps of an optimizer of which the tensors are listed."""
REPLACED = 8
"""Attributes that are searched for in the source, at most: of more the model was made otherwise."""
KEPT = 80
"""Steps of an optimizer that are kept."""
SITES = 32
"""Lines that step one optimizer which are kept."""
BORN = 128
"""Parameters, as they were when they were wrapped, that are kept."""
SMALL = 64
"""Tensors of an optimizer up to which those of all ranks are looked through for ones without fingerprints."""


def fold_setup(number: int, ranks: Sequence[RankSteps], shorten: Shortener) -> OptimizerSetup:
    """Return what one optimizer steps.

    Args:
        number: of an optimizer of which one rank at least has a table.
        ranks: of this node.
        shorten: names files and reads source lines.
    """
    tables = {rank.rank: rank.list_tables(number) for rank in ranks}
    known = {rank: found[0] for rank, found in tables.items() if found}
    every = [table for found in tables.values() for table in found]
    first = every[0]
    looks = [(rank.rank, event) for rank in ranks for event in list_steps(rank, number).values()]
    shapes = {tuple((row.name, tuple(row.shape)) for row in list_rows(table)) for table in known.values()}
    left = _list_left(first)
    searched = known.values() if len(first["rows"]) < SMALL else [first]
    return OptimizerSetup(
        number=number,
        kind=str(first["class"]),
        ranks=RankSet(known),
        parameters=max((int(event["count"]) for _, event in looks), default=0),
        frames=shorten.frames(first.get("frames")),
        models={str(key): str(name) for table in every for key, name in dict(table["models"]).items()},
        wrappers=tuple(
            dict.fromkeys(
                _read_wrapper(each, shorten) for table in every for each in table.get("wrappers") or ()
            )
        ),
        uniform=len(shapes) == 1,
        unfrozen=tuple(_find_unfrozen(tables.values()))[:LISTED],
        unreadable={
            str(row.name): str(row.unreadable)
            for table in searched
            for row in list_rows(table)
            if row.unreadable is not None
        },
        steps=fold_texts({rank: str(count_step(event) - 1) for rank, event in looks if event.get("final")}),
        sites=_fold_sites(looks, shorten),
        alongside=tuple(sorted({other for rank in ranks for other in _find_alongside(number, rank)})),
        peers=list_peers({rank: read_pieces(table) for rank, table in known.items()}),
        weighed=shorten.find_loss(
            next((event["weighed"] for _, event in looks if event.get("weighed")), None)
        ),
        lowered=_fold_lowered(known, looks),
        lowered_at=shorten.frames(
            next((each for _, event in looks if (each := event.get("lowered_at"))), None)
        ),
        reduced=shorten.frames(next((each for _, event in looks if (each := event.get("reduced_at"))), None)),
        all_to_all=any(event.get("all_to_all") is True for _, event in looks),
        scaled=shorten.frames(next((each for _, event in looks if (each := event.get("scaled_at"))), None)),
        averagings=_count_averagings(known, looks),
        averaging=shorten.frames(
            next((each for _, event in reversed(looks) if (each := event.get("averagings_at"))), None)
        ),
        rounds=()
        if any(table.get("wrappers") for table in every)
        else shorten.find_rounds(first.get("frames")),
        born=_fold_born(known),
        replaced=shorten.find_replacements(first.get("frames"), left) if 0 < len(left) <= REPLACED else (),
    )


def _count_averagings(ranks: Iterable[int], looks: Iterable[tuple[int, Step]]) -> int:
    """Return how often each rank at least averaged as much as its parameters."""
    counts = dict.fromkeys(ranks, 0)
    for rank, event in looks:
        if rank in counts:
            counts[rank] = max(counts[rank], int(event.get("averagings") or 0))
    return min(counts.values(), default=0)


def _list_left(table: Tensors) -> set[str]:
    """Return the attributes under which a model holds what neither DistributedDataParallel nor fully_shard has.

    Those of parameters that a wrapper does not know, or that are whole where others are pieces.
    """
    pieces, wrapped = read_pieces(table), bool(table.get("wrappers"))
    rows = list_rows(table)
    left = [
        str(row.name)
        for place, row in enumerate(rows)
        if row.kind == "parameter"
        and (not row.known and int(row.model) > 0 if wrapped else bool(pieces) and place not in pieces)
    ]
    return {
        part for name in left for part in name.split(".")[:-1] if part.isidentifier() and part != "module"
    }


def _fold_born(tables: Mapping[int, Tensors]) -> tuple[Born, ...]:
    """Return what ranks held of wrapped models before these were made equal."""
    held: dict[tuple[int, str], dict[int, str]] = {}
    for rank, table in tables.items():
        for row in table.get("wrappers") or ():
            for name, digest in row.get("born") or ():
                held.setdefault((int(row["number"]), str(name)), {})[rank] = str(digest)
    return tuple(
        Born(number, name, fold_texts(by_rank)) for (number, name), by_rank in list(held.items())[:BORN]
    )


def _fold_sites(looks: Iterable[tuple[int, Step]], shorten: Shortener) -> tuple[StepSite, ...]:
    """Return how many steps each rank made at each line, from their last looks."""
    counts: dict[tuple[Frame, ...], dict[int, int]] = defaultdict(dict)
    for rank, event in looks:
        for count, stack in (event.get("sites") or ()) if event.get("final") else ():
            known = counts[shorten.frames(stack)]
            known[rank] = known.get(rank, 0) + int(count)
    return tuple(
        StepSite(frames, fold_texts({rank: str(count) for rank, count in by_rank.items()}))
        for frames, by_rank in itertools.islice(counts.items(), SITES)
    )


def _find_alongside(number: int, rank: RankSteps) -> Iterator[int]:
    """Yield the optimizers that a rank stepped between its first and its last look at this one."""
    spans: dict[int, list[int]] = {}
    for (optimizer, _), event in rank.steps.items():
        at = event.get("mono_ns")
        if at is not None and not event.get("final"):
            span = spans.setdefault(optimizer, [at, at])
            span[:] = min(span[0], at), max(span[1], at)
    if number in spans:
        first, last = spans[number]
        yield from (each for each, (a, b) in spans.items() if each != number and a < last and first < b)


def fold_steps(number: int, ranks: Sequence[RankSteps], shorten: Shortener, *, alone: bool) -> list[StepLook]:
    """Return the looks at the steps of one optimizer.

    Args:
        number: of the optimizer.
        ranks: of this node.
        shorten: names files and reads source lines.
        alone: no other node has ranks of the job.
    """
    by_rank = {rank.rank: list_steps(rank, number) for rank in ranks}
    peers = list_peers(
        {rank.rank: read_pieces(tables[0]) for rank in ranks if (tables := rank.list_tables(number))}
    )
    looks: dict[int, StepLook] = {}
    whole: set[int] = set()
    lacking: set[int] = set()
    for step in sorted({step for events in by_rank.values() for step in events}):
        events = {rank: found[step] for rank, found in by_rank.items() if step in found}
        if any(event.get("whole") for event in events.values()):
            whole.add(step)
        if any(event.get("missing") for event in events.values()):
            lacking.add(step)
        looks[step] = _fold_step(number, step, events, shorten, peers)
    chosen = _choose(looks, whole, lacking)
    if peers or not alone:  # pieces of single tensors are compared among others than those of all
        chosen += _choose_shared(looks, whole)
    for step in dict.fromkeys(chosen):
        looks[step] = drill(looks[step], ranks, alone=alone)
    apart = [step for step in looks if step in whole and len(looks[step].others) > 1]
    if peers or not any(_keeps_buffers_apart(rank, number) for rank in ranks):
        apart = []
    for step in {*apart[:1], *apart[-1:]}:
        looks[step] = list_buffers(looks[step], ranks)
    kept = {
        step
        for step in looks
        if looks[step].tensors or looks[step].buffers or not step & (step - 1) or looks[step].final
    }
    rest = [step for step in looks if step not in kept]
    return [looks[step] for step in sorted([*kept, *rest[: max(0, KEPT - len(kept))]])]


def _keeps_buffers_apart(rank: RankSteps, number: int) -> bool:
    """Whether a wrapper of a model that an optimizer steps does not broadcast buffers."""
    wrappers = (each for table in rank.list_tables(number) for each in table.get("wrappers") or ())
    return any(each.get("broadcast_buffers") is False for each in wrappers)


def _fold_step(
    number: int,
    step: int,
    events: dict[int, Step],
    shorten: Shortener,
    peers: Sequence[RankSet],
) -> StepLook:
    finals = {bool(event.get("final")) for event in events.values()}
    if len(finals) > 1:  # some ranks were at their end, others went on
        events = {rank: event for rank, event in events.items() if not event.get("final")}
    rates = {rank: repr(event["rates"]) for rank, event in events.items() if event.get("rates") is not None}
    joined = any(
        event.get("shadowed") for event in events.values()
    )  # each rank has summed up steps of its own
    sums = {rank: event.get("rated") for rank, event in events.items() if not joined}
    rated = {rank: repr(total) for rank, total in sums.items() if total is not None}
    return StepLook(
        optimizer=number,
        step=step,
        final=finals == {True},
        values=_fold_among(events, "values", peers),
        others=_fold_among(events, "others", peers),
        gradients=_fold_among(events, "gradients", peers),
        rates=fold_texts(rates),
        rated=fold_texts(rated),
        wrappers=_fold_wrappers(events, shorten),
        states=tuple(each for each in _fold_states(events) if each.setting or not peers),
        carried=max(float(event.get("carried") or 0) for event in events.values()),
        exchanged=max(float(event.get("exchanged") or 0) for event in events.values()),
        joined=joined,
        weights=tuple(_read_weights(rank, event) for rank, event in events.items() if event.get("weights")),
        scaled=tuple(
            Scaled(rank, float(event["scaled"]), RankSet(map(int, event.get("sharers") or ())))
            for rank, event in events.items()
            if event.get("scaled")
        ),
        reduced=tuple(_read_reduced(rank, event) for rank, event in events.items() if event.get("reduced")),
        unsynced=RankSet(rank for rank, event in events.items() if event.get("unsynced")),
    )


def _fold_lowered(ranks: Iterable[int], looks: Iterable[tuple[int, Step]]) -> tuple[Share, ...]:
    """Return after which steps each rank lowered its learning rate; nothing where none did."""
    lowered: dict[int, list[int]] = {rank: [] for rank in ranks}
    for rank, event in looks:
        told = [int(each) for each in event.get("lowered") or ()]
        if rank in lowered and len(told) > len(lowered[rank]):
            lowered[rank] = told
    return fold_texts({rank: repr(told) for rank, told in lowered.items()}) if any(lowered.values()) else ()


def _read_reduced(rank: int, event: Step) -> Reduced:
    before, after = (tuple(map(float, each)) for each in (event["unreduced"], event["reduced"]))
    return Reduced(rank, RankSet(map(int, event["averaged"][0])), before, after)


def _read_weights(rank: int, event: Step) -> LossWeights:
    rows = [(float(count), float(weight)) for count, weight in event["weights"]]
    return LossWeights(rank, tuple(count for count, _ in rows), tuple(weight for _, weight in rows))


def _fold_among(events: dict[int, Step], name: str, peers: Sequence[RankSet]) -> tuple[Share, ...]:
    """Return which ranks have the same in a field, compared among those that hold the same pieces."""
    shares = fold_field(events, name)
    return (
        order_shares(tell_apart({each.digest: (list(each.ranks), None) for each in shares}, peers))
        if peers
        else shares
    )


def _fold_wrappers(events: Mapping[int, Step], shorten: Shortener) -> tuple[WrapperLook, ...]:
    rows: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    ways: dict[int, dict[str, Any]] = {}
    for rank, event in events.items():
        for row in map(WrapperRow._make, event.get("wrappers") or ()):
            rows[int(row.number), int(row.synced), int(row.alone), int(row.last)].append(rank)
            if isinstance(row.bypass, dict):
                ways.setdefault(int(row.number), row.bypass)
    return tuple(
        WrapperLook(
            number=number,
            ranks=RankSet(who),
            synced=synced,
            alone=alone,
            last_synced=None if last < 0 else bool(last),
            bypassed=str(ways[number]["module"]) if number in ways else None,
            bypass=shorten.frames(ways[number].get("frames")) if number in ways else (),
        )
        for (number, synced, alone, last), who in rows.items()
    )


def _fold_states(events: Mapping[int, Step]) -> tuple[StateLook, ...]:
    told = {
        rank: {str(name): str(digest) for name, digest in event["states"]}
        for rank, event in events.items()
        if event.get("states") is not None
    }
    given = {
        rank: {str(name): str(text)[:200] for name, text in event.get("settings") or ()}
        for rank, event in events.items()
        if rank in told
    }
    return tuple(
        StateLook(
            name, fold_texts({rank: each.get(name, "") for rank, each in rows.items()}), setting=setting
        )
        for setting, rows in ((True, given), (False, told))
        for name in dict.fromkeys(name for each in rows.values() for name in each)
    )


def _choose(looks: Mapping[int, StepLook], whole: set[int], lacking: set[int]) -> list[int]:
    """Return the steps whose tensors are to be listed: where something shows first, and the last ones.

    Args:
        looks: in order.
        whole: steps of which the numbers of each tensor are known.
        lacking: steps at which a tensor had no gradient.
    """

    def first(holds: Callable[[int], bool]) -> int | None:
        return next((step for step in looks if step in whole and holds(step)), None)

    apart = [step for step in looks if len(looks[step].values) > 1]
    chosen = [
        first(lambda step: len(looks[step].values) > 1),
        first(lambda step: len(looks[step].gradients) > 1),
        first(lambda step: step in lacking),
        first(lambda step: any(len(each.values) > 1 for each in looks[step].states)),
        *[step for step in apart if looks[step].final][-1:],
        *[step for step in apart if step in whole and not looks[step].final][-1:],
    ]
    return list(dict.fromkeys(step for step in chosen if step is not None))[:DRILLED]


def _choose_shared(looks: Mapping[int, StepLook], whole: set[int]) -> list[int]:
    """Return the steps of which every node lists tensors, so that it is known which differ between them."""
    chosen = [step for step in looks if step in whole]
    return [*chosen[:FIRST_LISTED], *[step for step in chosen[FIRST_LISTED:] if looks[step].final]]


def _find_unfrozen(tables: Iterable[list[Tensors]]) -> list[str]:
    """Return the parameters that required no gradient in the first table of a rank, and did in a later one."""
    found: dict[str, None] = {}
    for each in tables:
        frozen = {row.name for table in each[:1] for row in list_rows(table) if not row.trainable}
        for table in each[1:]:
            thawed = (row.name for row in list_rows(table) if row.trainable and row.name in frozen)
            found.update((str(name), None) for name in thawed)
    return list(found)


def _read_wrapper(row: dict[str, Any], shorten: Shortener) -> WrapperSetup:
    return WrapperSetup(
        number=int(row["number"]),
        model=str(row["class"]),
        group=RankSet(int(rank) for rank in row.get("ranks") or ()),
        find_unused_parameters=bool(row.get("find_unused_parameters")),
        static_graph=bool(row.get("static_graph")),
        hooks=tuple(str(each) for each in row.get("hooks") or ()),
        batch_norms=int(row.get("batch_norms") or 0),
        broadcasts=row.get("broadcast_buffers") is not False,
        frames=shorten.frames(row.get("frames")),
    )
