"""What ranks wrote down of their training, folded to who agrees with whom (`ddpdoctor.evidence.training`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.layout import Layout, make_layout
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook, Training
from ddpdoctor.evidence.training.numerics import Numerics
from ddpdoctor.evidence.training.syncs import Syncs
from ddpdoctor.evidence.training.timing import Timing
from ddpdoctor.facts.events import AnyEvent, FileEvent
from ddpdoctor.facts.training_events import (
    LoaderEvent,
    LoadEvent,
    NumberEvent,
    ResumeEvent,
    Seed,
    StepEvent,
    SyncEvent,
    Times,
)
from ddpdoctor.watch.readers import (
    layouts,
    loaders,
    loads,
    numerics,
    resumes,
    seedings,
    sharing,
    steps,
    syncs,
    timing,
)
from ddpdoctor.watch.readers.agreement import group_ranks
from ddpdoctor.watch.readers.events import DAMAGED
from ddpdoctor.watch.readers.rank_steps import RankSteps
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.same_optimizers import match_optimizers
from ddpdoctor.watch.readers.samplings import fold_samplings

KINDS = (
    frozenset({"abstained", "watching"})
    | steps.KINDS
    | loaders.KINDS
    | numerics.KINDS
    | syncs.KINDS
    | sharing.KINDS
    | timing.KINDS
    | loads.KINDS
    | resumes.KINDS
    | seedings.KINDS
)
"""Events that tell of the training."""

T = TypeVar("T")


@dataclass(slots=True)
class _Rank:
    """Events of one rank."""

    steps: RankSteps
    loaders: loaders.RankLoaders
    numbers: numerics.RankNumbers = field(default_factory=numerics.RankNumbers)
    syncs: list[SyncEvent] = field(default_factory=list)
    files: sharing.RankFiles = field(default_factory=sharing.RankFiles)
    times: Times | None = None
    loads: list[LoadEvent] = field(default_factory=list)
    resumes: list[ResumeEvent] = field(default_factory=list)
    seeds: list[Seed] = field(default_factory=list)
    abstained: list[str] = field(default_factory=list)
    share: float | None = None

    def take(self, event: AnyEvent) -> None:
        kind = event["event"]
        if kind in steps.KINDS:
            self.steps.take(cast(StepEvent, event))
        elif kind in loaders.KINDS:
            self.loaders.take(cast(LoaderEvent, event))
        elif kind in numerics.KINDS:
            self.numbers.take(cast(NumberEvent, event))
        elif kind in syncs.KINDS:
            self.syncs.append(cast(SyncEvent, event))
        elif kind in sharing.KINDS:
            self.files.take(cast(FileEvent, event))
        elif kind in timing.KINDS:
            self.times = cast(Times, event)
        elif kind in loads.KINDS:
            self.loads.append(cast(LoadEvent, event))
        elif kind in resumes.KINDS:
            self.resumes.append(cast(ResumeEvent, event))
        elif kind in seedings.KINDS:
            self.seeds.append(cast(Seed, event))
        elif event["event"] == "abstained":
            self.abstained.append(str(event["reason"]))
        elif event["event"] == "watching" and event["elapsed_ns"] > 0:
            self.share = max(0.0, float(event["spent_ns"]) / float(event["elapsed_ns"]))

    def tells(self) -> bool:
        """Whether it says anything of a training."""
        given, numbers = self.loaders, self.numbers
        return bool(
            self.steps.steps
            or given.batches
            or given.epochs
            or numbers.losses
            or numbers.count
            or self.files.uses
            or self.loads
            or self.resumes
        )


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

    def add(self, rank: int, path: Path, events: Iterable[AnyEvent], world: int = 0) -> None:
        """Take the events of one rank's process, of a job of so many ranks; 0 where that is not known."""
        self._world = max(self._world, world)
        found = _Rank(RankSteps(rank, path), loaders.RankLoaders(rank))
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
        ranks = dict(sorted(self._ranks.items()))
        if self._twice or not any(rank.tells() for rank in ranks.values()):
            return None
        shorten = self._shorten
        setups, looks = self._fold_optimizers([rank.steps for rank in ranks.values()])
        given = [rank.loaders for rank in ranks.values()]
        shares = [rank.share for rank in ranks.values() if rank.share is not None]
        reasons = group_ranks((reason, number) for number, rank in ranks.items() for reason in rank.abstained)
        return Training(
            node=node,
            ranks=RankSet(ranks),
            optimizers=tuple(setups),
            steps=tuple(looks),
            batches=tuple(self._try(lambda: loaders.fold_batches(given, shorten)) or ()),
            epochs=tuple(self._try(lambda: loaders.fold_epochs(given, shorten)) or ()),
            loaders=tuple(self._try(lambda: loaders.fold_loaders(given, shorten)) or ()),
            numerics=self._try(lambda: self._fold_numbers(ranks)) or Numerics(),
            samplings=self._try(lambda: fold_samplings(given, shorten)) or (),
            loads=self._try(
                lambda: loads.fold_loads({number: rank.loads for number, rank in ranks.items()}, shorten)
            )
            or (),
            late_loads=self._try(
                lambda: loads.fold_late_loads({number: rank.loads for number, rank in ranks.items()}, shorten)
            )
            or (),
            resumes=self._try(
                lambda: resumes.fold_resumes(
                    {number: rank.resumes for number, rank in ranks.items()}, shorten
                )
            )
            or (),
            seedings=self._try(
                lambda: seedings.fold_seeds({number: rank.seeds for number, rank in ranks.items()}, shorten)
            )
            or (),
            files=self._try(
                lambda: sharing.fold_files({number: rank.files for number, rank in ranks.items()}, shorten)
            )
            or (),
            syncs=self._try(
                lambda: syncs.fold_syncs({number: rank.syncs for number, rank in ranks.items()}, shorten)
            )
            or Syncs(),
            timing=self._try(lambda: self._fold_times(ranks)) or Timing(),
            layout=self._try(lambda: self._fold_layout(ranks)) or Layout(),
            abstained={reason: RankSet(who) for reason, who in reasons.items()},
            share=max(shares, default=None),
        )

    def _fold_optimizers(self, ranks: list[RankSteps]) -> tuple[list[OptimizerSetup], list[StepLook]]:
        setups: list[OptimizerSetup] = []
        looks: list[StepLook] = []
        alone = self._world <= len(ranks)
        self._try(partial(match_optimizers, ranks))
        for number in sorted({key[0] for rank in ranks for key in rank.tables}):
            setup = self._try(partial(steps.fold_setup, number, ranks, self._shorten))
            if setup is not None:
                setups.append(setup)
                looks += self._try(partial(steps.fold_steps, number, ranks, self._shorten, alone=alone)) or []
        return setups, looks

    @staticmethod
    def _fold_layout(ranks: dict[int, _Rank]) -> Layout:
        tables = (table for rank in ranks.values() for table in rank.steps.tables.values())
        looks = (look for rank in ranks.values() for look in rank.steps.steps.values())
        return make_layout(layouts.list_axes(tables, looks))

    def _fold_times(self, ranks: dict[int, _Rank]) -> Timing:
        return timing.fold_timing(
            {number: rank.times for number, rank in ranks.items() if rank.times is not None},
            self._world,
            lambda number, place: ranks[number].loaders.locate(place, self._shorten)[1],
            self._shorten,
        )

    def _fold_numbers(self, ranks: dict[int, _Rank]) -> Numerics:
        return numerics.fold_numbers(
            {number: rank.numbers for number, rank in ranks.items()},
            self._shorten,
            lambda number, place: ranks[number].loaders.locate(place, self._shorten)[0],
        )

    def _try(self, make: Callable[[], T]) -> T | None:
        """What ranks wrote may be damaged, or made up."""
        try:
            return make()
        except DAMAGED:
            self.damaged += 1
            return None
