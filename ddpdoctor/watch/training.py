"""What ranks wrote down of their training, folded to who agrees with whom (`ddpdoctor.evidence.training`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.numerics import Numerics
from ddpdoctor.evidence.sampling import Sampling
from ddpdoctor.evidence.syncs import Syncs
from ddpdoctor.evidence.training import (
    BatchLook,
    EpochLook,
    LoaderSetup,
    OptimizerSetup,
    Share,
    StepLook,
    TensorLook,
    Training,
    WrapperLook,
    WrapperSetup,
)
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.events import DAMAGED, LONGEST, read_events
from ddpdoctor.watch.numerics import KINDS as NUMBERS
from ddpdoctor.watch.numerics import RankNumbers, fold_numbers
from ddpdoctor.watch.records import Shortener
from ddpdoctor.watch.samplings import RankLoaders, fold_samplings
from ddpdoctor.watch.sharing import KINDS as FILES
from ddpdoctor.watch.sharing import RankFiles, fold_files
from ddpdoctor.watch.syncs import KINDS as SYNCS
from ddpdoctor.watch.syncs import fold_syncs

KINDS = (
    frozenset({"tensors", "step", "batch", "epoch", "loader", "abstained", "watching"})
    | NUMBERS
    | SYNCS
    | FILES
)
"""Events that tell of the training."""
LISTED = 48
"""Tensors of one step that are listed."""
TRAVELLING = 24
"""Tensors of one step that are listed, though this node's ranks agree in them, where other nodes have ranks too."""
FIRST_LISTED = 4
"""Steps that are listed for the other nodes, besides the last one."""
DRILLED = 6
"""Steps of an optimizer of which the tensors are listed."""
KEPT = 80
"""Steps of an optimizer that are kept."""
FILE_LIMIT = 64 << 20

K = TypeVar("K", bound=Hashable)
_Key = tuple[int, str]
"""Number of the model, and name of the tensor."""


@dataclass(slots=True)
class _Rank:
    """Events of one rank; of steps without the numbers of each tensor."""

    rank: int
    path: Path
    tables: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    steps: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    batches: list[dict[str, Any]] = field(default_factory=list)
    epochs: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    loaders: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    numbers: RankNumbers = field(default_factory=RankNumbers)
    syncs: list[dict[str, Any]] = field(default_factory=list)
    abstained: list[str] = field(default_factory=list)
    share: float | None = None
    files: RankFiles = field(default_factory=RankFiles)

    def take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "tensors":
            self.tables[int(event["optimizer"]), int(event["table"])] = event
        elif kind == "step":
            self.steps[int(event["optimizer"]), int(event["step"])] = event
        elif kind == "batch":
            self.batches.append(event)
        elif kind == "epoch":
            self.epochs[int(event["loader"]), int(event["number"])] = event
        elif kind == "loader":
            self.loaders.setdefault(int(event.get("place") or 0), []).append(event)
        elif kind in NUMBERS:
            self.numbers.take(event)
        elif kind in SYNCS:
            self.syncs.append(event)
        elif kind == "abstained":
            self.abstained.append(str(event["reason"]))
        elif kind in FILES:
            self.files.take(event)
        elif event["elapsed_ns"] > 0:
            self.share = max(0.0, float(event["spent_ns"]) / float(event["elapsed_ns"]))

    def tells(self) -> bool:
        """Whether it says anything of a training."""
        numbers = self.numbers
        return bool(
            self.steps or self.batches or self.epochs or numbers.losses or numbers.count or self.files.uses
        )

    def name_loader(self, place: int, shorten: Shortener) -> tuple[str, tuple[Frame, ...]]:
        for event in self.loaders.get(place, ()):
            frames = shorten.frames(event.get("frames"))
            if frames:
                return f"{frames[0].file}:{frames[0].line}", frames
        return "", ()


class TrainingReader:
    """Collects the events of a node's ranks, then folds them.

    Args:
        shorten: names files and reads source lines.
    """

    def __init__(self, shorten: Shortener) -> None:
        self._shorten = shorten
        self._ranks: dict[int, _Rank] = {}
        self._twice = False
        self._world = 0
        self.damaged = 0

    def add(self, rank: int, path: Path, events: Iterable[dict[str, Any]], world: int = 0) -> None:
        """Take the events of one rank's process, of a job of so many ranks; 0 where that is not known."""
        self._world = max(self._world, world)
        found = _Rank(rank, path)
        for event in events:
            try:
                found.take(event)
            except DAMAGED:
                self.damaged += 1
        if rank in self._ranks:
            self._twice = True  # two jobs beside each other: their numbers mean different ranks
        self._ranks[rank] = found

    def fold(self, node: int) -> Training | None:
        """Return what was seen; None where nothing was, or where it cannot be told which rank is which."""
        ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
        if self._twice or not any(rank.tells() for rank in ranks):
            return None
        setups: list[OptimizerSetup] = []
        steps: list[StepLook] = []
        for number in sorted({key[0] for rank in ranks for key in rank.tables}):
            setup = self._try(partial(self._fold_setup, number, ranks))
            if setup is not None:
                setups.append(setup)
                steps += self._try(partial(self._fold_steps, number, ranks)) or []
        shares = [rank.share for rank in ranks if rank.share is not None]
        return Training(
            node=node,
            ranks=RankSet(rank.rank for rank in ranks),
            optimizers=tuple(setups),
            steps=tuple(steps),
            batches=tuple(self._try(lambda: self._fold_batches(ranks)) or ()),
            epochs=tuple(self._try(lambda: self._fold_epochs(ranks)) or ()),
            loaders=tuple(self._try(lambda: self._fold_loaders(ranks)) or ()),
            numerics=self._try(lambda: self._fold_numbers(ranks)) or Numerics(),
            samplings=self._try(lambda: self._fold_samplings(ranks)) or (),
            files=self._try(lambda: fold_files({rank.rank: rank.files for rank in ranks}, self._shorten))
            or (),
            syncs=self._try(
                lambda: fold_syncs({rank.rank: rank.syncs for rank in ranks}, self._shorten.frames)
            )
            or Syncs(),
            abstained={
                reason: RankSet(who)
                for reason, who in _group(
                    (reason, rank.rank) for rank in ranks for reason in rank.abstained
                ).items()
            },
            share=max(shares, default=None),
        )

    def _try(self, make: Callable[[], Any]) -> Any:
        """What ranks wrote may be damaged, or made up."""
        try:
            return make()
        except DAMAGED:
            self.damaged += 1
            return None

    def _fold_setup(self, number: int, ranks: list[_Rank]) -> OptimizerSetup:
        tables = {rank.rank: _list_tables(rank, number) for rank in ranks}
        known = {rank: found[0] for rank, found in tables.items() if found}
        every = [table for found in tables.values() for table in found]
        first = every[0]
        made = {
            rank.rank: str(step["step"] - 1)
            for rank in ranks
            for (optimizer, _), step in rank.steps.items()
            if optimizer == number and step.get("final")
        }
        shapes = {tuple((row[0], tuple(row[3])) for row in table["rows"]) for table in known.values()}
        return OptimizerSetup(
            number=number,
            kind=str(first["class"]),
            ranks=RankSet(known),
            parameters=max(
                (
                    int(step["count"])
                    for rank in ranks
                    for (opt, _), step in rank.steps.items()
                    if opt == number
                ),
                default=0,
            ),
            frames=self._shorten.frames(first.get("frames")),
            models={str(key): str(name) for table in every for key, name in dict(table["models"]).items()},
            wrappers=tuple(
                dict.fromkeys(
                    _read_wrapper(each, self._shorten)
                    for table in every
                    for each in table.get("wrappers") or ()
                )
            ),
            uniform=len(shapes) == 1,
            unfrozen=tuple(_find_unfrozen(ranks, number))[:LISTED],
            unreadable={
                str(row[0]): str(row[7])
                for table in known.values()
                for row in table["rows"]
                if row[7] is not None
            }
            if len(first["rows"]) < 64
            else {str(row[0]): str(row[7]) for row in first["rows"] if row[7] is not None},
            steps=_fold_shares(made),
        )

    def _fold_steps(self, number: int, ranks: list[_Rank]) -> list[StepLook]:
        numbers = sorted({step for rank in ranks for optimizer, step in rank.steps if optimizer == number})
        looks: dict[int, StepLook] = {}
        for step in numbers:
            events = {rank.rank: rank.steps[number, step] for rank in ranks if (number, step) in rank.steps}
            finals = {bool(event.get("final")) for event in events.values()}
            if len(finals) > 1:  # some ranks were at their end, others went on
                events = {rank: event for rank, event in events.items() if not event.get("final")}
            looks[step] = StepLook(
                optimizer=number,
                step=step,
                final=finals == {True},
                values=_fold_field(events, "values"),
                gradients=_fold_field(events, "gradients"),
                rates=_fold_shares(
                    {
                        rank: repr(event["rates"])
                        for rank, event in events.items()
                        if event.get("rates") is not None
                    }
                ),
                wrappers=self._fold_wrappers(events),
                carried=max(float(event.get("carried") or 0) for event in events.values()),
                exchanged=max(float(event.get("exchanged") or 0) for event in events.values()),
            )
        shared = _choose_shared(looks, ranks, number) if self._world > len(ranks) else []
        for step in dict.fromkeys((*_choose(looks, ranks, number), *shared)):
            looks[step] = self._drill(looks[step], ranks)
        kept = [step for step in looks if looks[step].tensors or not step & (step - 1) or looks[step].final]
        rest = [step for step in looks if step not in set(kept)]
        return [looks[step] for step in sorted([*kept, *rest[: max(0, KEPT - len(kept))]])]

    def _fold_wrappers(self, events: Mapping[int, dict[str, Any]]) -> tuple[WrapperLook, ...]:
        rows: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
        ways: dict[int, dict[str, Any]] = {}
        for rank, event in events.items():
            for number, synced, alone, last, bypassed in event.get("wrappers") or ():
                rows[int(number), int(synced), int(alone), int(last)].append(rank)
                if isinstance(bypassed, dict):
                    ways.setdefault(int(number), bypassed)
        return tuple(
            WrapperLook(
                number=number,
                ranks=RankSet(who),
                synced=synced,
                alone=alone,
                last_synced=None if last < 0 else bool(last),
                bypassed=str(ways[number]["module"]) if number in ways else None,
                bypass=self._shorten.frames(ways[number].get("frames")) if number in ways else (),
            )
            for (number, synced, alone, last), who in rows.items()
        )

    def _drill(self, look: StepLook, ranks: list[_Rank]) -> StepLook:
        """List the tensors that differ, or that have no gradient somewhere."""
        tensors: dict[_Key, _Tensor] = {}
        for rank in ranks:
            event = _read_step(rank.path, look.optimizer, look.step)
            table = rank.tables.get((look.optimizer, int(event["table"]))) if event is not None else None
            if event is None or table is None:
                continue
            _spread(rank.rank, event, table, tensors)
        telling = [each.fold(key) for key, each in tensors.items() if each.tells(look.final)]
        if self._world > len(ranks):  # of another node's ranks nothing is known here
            agreed = [each.fold(key) for key, each in tensors.items() if not each.tells(look.final)]
            telling += agreed[: max(0, TRAVELLING - len(telling))]
        return StepLook(
            **{
                **{name: getattr(look, name) for name in StepLook.__slots__},
                "tensors": tuple(telling[:LISTED]),
                "differing": sum(len(each.values) > 1 or len(each.gradients) > 1 for each in telling),
            }
        )

    def _fold_batches(self, ranks: list[_Rank]) -> list[BatchLook]:
        groups: dict[tuple[int, str, int, int], dict[int, dict[str, Any]]] = defaultdict(dict)
        for rank in ranks:
            for event in rank.batches:
                loader, _ = rank.name_loader(int(event["loader"]), self._shorten)
                key = int(event["model"]), loader, int(event["epoch"]), int(event["index"])
                groups[key][rank.rank] = event
        return [
            BatchLook(
                *key,
                batches=_fold_field(events, "print"),
                shape=tuple(int(size) for size in (next(iter(events.values()))["shapes"] or [[]])[0]),
                frames=self._shorten.frames(next(iter(events.values())).get("frames")),
                draws=_fold_field(events, "draws"),
            )
            for key, events in sorted(groups.items())
        ]

    def _fold_samplings(self, ranks: list[_Rank]) -> tuple[Sampling, ...]:
        rows = (RankLoaders(rank.rank, rank.loaders, rank.epochs, rank.batches) for rank in ranks)
        return fold_samplings(rows, self._shorten)

    def _fold_epochs(self, ranks: list[_Rank]) -> list[EpochLook]:
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for rank in ranks:
            for (place, number), event in rank.epochs.items():
                loader, _ = rank.name_loader(place, self._shorten)
                key = (
                    loader, number, str(event["print"]), int(event["compared"]), int(event["batches"]),
                    int(event["samples"]), tuple(int(index) for index in event["first"]),
                    bool(event["ascending"]), int(event["steps"]),
                )  # fmt: skip
                groups[key].append(rank.rank)
        return [
            EpochLook(
                loader=key[0], number=key[1], ranks=RankSet(who), digest=key[2], compared=key[3], batches=key[4],
                samples=key[5], first=key[6], ascending=key[7], steps=key[8],
            )
            for key, who in sorted(groups.items())
        ]  # fmt: skip

    def _fold_numbers(self, ranks: list[_Rank]) -> Numerics:
        by_rank = {rank.rank: rank for rank in ranks}
        return fold_numbers(
            {rank.rank: rank.numbers for rank in ranks},
            self._shorten.frames,
            lambda rank, place: by_rank[rank].name_loader(place, self._shorten)[0],
        )

    def _fold_loaders(self, ranks: list[_Rank]) -> list[LoaderSetup]:
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        frames_of: dict[str, tuple[Frame, ...]] = {}
        for rank in ranks:
            for place, events in rank.loaders.items():
                loader, frames = rank.name_loader(place, self._shorten)
                if not loader:
                    continue
                frames_of.setdefault(loader, frames)
                first = events[0]
                shuffle = first.get("shuffle")
                key = (
                    loader, _number(first.get("length")), _number(first.get("batch_size")), first.get("sampler"),
                    bool(first.get("sets_epoch")), None if shuffle is None else bool(shuffle),
                    tuple(int(event["epoch"]) for event in events[:8] if _number(event.get("epoch")) is not None),
                    _number(first.get("num_replicas")), first.get("shuffles") is not False,
                )  # fmt: skip
                groups[key].append(rank.rank)
        return [
            LoaderSetup(
                loader=key[0], ranks=RankSet(who), frames=frames_of[key[0]], length=key[1], batch_size=key[2],
                sampler=None if key[3] is None else str(key[3]), sets_epoch=key[4], shuffle=key[5], epochs=key[6],
                replicas=key[7], shuffles=key[8],
            )
            for key, who in groups.items()
        ]  # fmt: skip


@dataclass(slots=True)
class _Tensor:
    """One tensor of one step over the ranks."""

    kind: str
    shape: tuple[int, ...]
    values: dict[str, tuple[list[int], float | None]] = field(default_factory=dict)
    gradients: dict[str, tuple[list[int], float | None]] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    trainable: list[int] = field(default_factory=list)
    known: dict[int, list[int]] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)

    def tells(self, final: bool) -> bool:
        lacking = not final and self.kind == "parameter" and set(self.missing) & set(self.trainable)
        return len(self.values) > 1 or len(self.gradients) > 1 or bool(lacking)

    def fold(self, key: _Key) -> TensorLook:
        return TensorLook(
            name=key[1],
            model=key[0],
            kind=self.kind,
            shape=self.shape,
            trainable=RankSet(self.trainable),
            values=_order(self.values),
            gradients=_order(self.gradients),
            missing=RankSet(self.missing),
            reduced=RankSet(self.known.get(1, ())),
            ignored=RankSet(self.known.get(2, ())),
            idle=RankSet(self.idle),
        )


def _spread(rank: int, event: dict[str, Any], table: dict[str, Any], tensors: dict[_Key, _Tensor]) -> None:
    """Put one rank's numbers of a step to their tensors."""
    values, gradients = event.get("each") or (), event.get("each_gradient")
    idle = set(event.get("idle") or ())
    missing = set(event.get("missing") or ())
    for place, row in enumerate(table["rows"]):
        name, kind, model, shape, _, trainable, known, _ = row
        tensor = tensors.get((int(model), str(name)))
        if tensor is None:
            sizes = tuple(int(size) for size in shape)
            tensor = tensors[int(model), str(name)] = _Tensor(str(kind), sizes)
        if trainable:
            tensor.trainable.append(rank)
        tensor.known.setdefault(int(known), []).append(rank)
        _note(tensor.values, values, place, rank)
        if gradients is not None and place < int(event["count"]):
            _note(tensor.gradients, gradients, place, rank)
            if place in missing:
                tensor.missing.append(rank)
        if place in idle:
            tensor.idle.append(rank)


def _note(into: dict[str, tuple[list[int], float | None]], prints: Any, place: int, rank: int) -> None:
    found = prints[place] if place < len(prints) else None
    if found is not None:
        norm = found[1]
        into.setdefault(str(found[0]), ([], float(norm) if norm is not None else None))[0].append(rank)


def _order(groups: Mapping[str, tuple[list[int], float | None]]) -> tuple[Share, ...]:
    shares = [Share(digest, RankSet(who), norm) for digest, (who, norm) in groups.items()]
    return tuple(sorted(shares, key=lambda share: (-len(share.ranks), share.ranks.ranges)))


def _choose(looks: Mapping[int, StepLook], ranks: list[_Rank], number: int) -> list[int]:
    """Return the steps whose tensors are to be listed: where something shows first, and the last ones."""

    def first(holds: Callable[[int], bool]) -> int | None:
        return next((step for step in looks if step in listed and holds(step)), None)

    listed = {
        step
        for rank in ranks
        for (optimizer, step), event in rank.steps.items()
        if optimizer == number and event.get("whole")
    }

    lacking = {
        step
        for rank in ranks
        for (optimizer, step), event in rank.steps.items()
        if optimizer == number and event.get("missing")
    }
    finals = [step for step in looks if looks[step].final and len(looks[step].values) > 1]
    whole = [step for step in looks if step in listed and len(looks[step].values) > 1]
    chosen = [
        first(lambda step: len(looks[step].values) > 1),
        first(lambda step: len(looks[step].gradients) > 1),
        first(lambda step: step in lacking),
        *finals[-1:],
        *whole[-1:],
    ]
    return list(dict.fromkeys(step for step in chosen if step is not None))[:DRILLED]


def _choose_shared(looks: Mapping[int, StepLook], ranks: list[_Rank], number: int) -> list[int]:
    """Return the steps of which every node lists tensors, so that it is known which differ between them."""
    listed = {
        step
        for rank in ranks
        for (opt, step), event in rank.steps.items()
        if opt == number and event.get("whole")
    }
    chosen = [step for step in sorted(looks) if step in listed]
    return [*chosen[:FIRST_LISTED], *[step for step in chosen[FIRST_LISTED:] if looks[step].final]]


def _read_step(path: Path, optimizer: int, step: int) -> dict[str, Any] | None:
    """Read one event of a step once more, with the numbers of each tensor."""
    try:
        with open_regular(path) as file:
            for line in _find_lines(file, b'"event":"step"', f'"optimizer":{optimizer},', f'"step":{step},'):
                for event in read_events(line):
                    told = event.get("event"), event.get("optimizer"), event.get("step")
                    if told == ("step", optimizer, step):
                        return event
    except OSError:
        return None
    return None


def _find_lines(file: BinaryIO, kind: bytes, *marks: str) -> Iterator[bytes]:
    """Yield the lines that have all marks; the file may be long, and so may a line."""
    wanted = [kind, *(mark.encode() for mark in marks)]
    left = FILE_LIMIT
    while left > 0 and (line := file.readline(LONGEST)):
        left -= len(line)
        if all(mark in line for mark in wanted):
            yield line


def _list_tables(rank: _Rank, number: int) -> list[dict[str, Any]]:
    """Return the tables of one optimizer as they changed; its models may be gone in the last one."""
    return [table for (optimizer, _), table in sorted(rank.tables.items()) if optimizer == number]


def _find_unfrozen(ranks: list[_Rank], number: int) -> list[str]:
    found: dict[str, None] = {}
    for rank in ranks:
        tables = _list_tables(rank, number)
        frozen = {row[0] for table in tables[:1] for row in table["rows"] if not row[5]}
        for table in tables[1:]:
            found.update((str(row[0]), None) for row in table["rows"] if row[5] and row[0] in frozen)
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
        frames=shorten.frames(row.get("frames")),
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _group(pairs: Iterable[tuple[K, int]]) -> dict[K, list[int]]:
    groups: dict[K, list[int]] = {}
    for key, rank in pairs:
        groups.setdefault(key, []).append(rank)
    return groups


def _fold_field(events: Mapping[int, dict[str, Any]], name: str) -> tuple[Share, ...]:
    return _fold_shares(
        {rank: str(event[name]) for rank, event in events.items() if event.get(name) is not None}
    )


def _fold_shares(digests: Mapping[int, str]) -> tuple[Share, ...]:
    """Return who has the same, the most first."""
    return _order(
        {
            digest: (who, None)
            for digest, who in _group((text, rank) for rank, text in digests.items()).items()
        }
    )
