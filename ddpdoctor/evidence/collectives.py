"""Who called what: the calls of torch.distributed of each rank, in order.

Made by the reader of Flight Recorder dumps. The classes know nothing of a dump's form, so that one matching judges
whatever fills them.

* `CallLog` is one gathering: tables of what repeats (groups, frames, stacks, calls) and one `RankCalls` per rank.
* `RecordedCall` is what a call asks for: op, group, shapes, types, root or peer, reduction, call site. Calls that are
  alike are one entry of ``CallLog.calls``, whatever rank made them: equal numbers are equal calls. The op is spelled
  as the function of torch.distributed: ``all_reduce``, ``reduce_scatter_tensor``.
* `RankCalls` has columns, one row for each call in the order in which the rank made them. The sequence number counts
  the collectives of one group (or, for ``p2p`` calls, its sends and receives) from 1, on every rank alike.
* `CallTable` builds it: ``n = table.call(RecordedCall("all_reduce", table.group("0"), stack=table.stack(frames)))``
  for each row, then ``table.log(ranks)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.stages import Frame

UNKNOWN, SCHEDULED, STARTED, COMPLETED = 0, 1, 2, 3
"""How far a call had come."""
STATES = ("unknown", "scheduled", "started", "completed")
RETIRED = 4
"""Added to the state where the backend has forgotten the call: it ended, well or not. gloo knows nothing else."""

Shapes = tuple[tuple[int, ...], ...]
RING = "ring"
"""Source of calls that a watched rank wrote down itself before it made them."""
SAVED_ROWS = 20_000
"""Rows of all ranks that a report keeps: 300 kB of JSON."""
SAVED_LEAST = 4
"""Rows of each rank that a report keeps, however many ranks there are."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group as some ranks know it."""

    name: str
    """torch's own: ``0``, ``1``."""
    description: str = ""
    """``default_pg``, or what ``new_group(group_desc=…)`` was given."""
    ranks: RankSet | None = None
    """Its members, as global ranks; None where it is not known."""


@dataclass(frozen=True, slots=True)
class CreatedGroup:
    """A group as some ranks created it, where others created one of the same name of other members."""

    name: str
    members: RankSet
    ranks: RankSet
    """Those that created it so."""
    frames: tuple[Frame, ...] = ()
    """Where, innermost first, on the first of them."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """What a call asks for; None and empty where it is not known."""

    op: str
    group: int = 0
    """Place in `CallLog.groups`."""
    inputs: Shapes | None = None
    outputs: Shapes | None = None
    input_types: tuple[str, ...] = ()
    """Dtypes of the inputs as torch writes them in the source: ``float32``."""
    output_types: tuple[str, ...] = ()
    stack: int = -1
    """Call site: place in `CallLog.stacks`; -1 where it is not known."""
    root: int | None = None
    """Global rank of ``src`` or ``dst`` of a collective."""
    reduction: str | None = None
    """``sum``, ``avg``…"""
    peer: int | None = None
    """The other rank of a send or receive."""
    tag: int | None = None
    p2p: bool = False
    asynchronous: bool | None = None
    conditions: tuple[Frame, ...] = ()
    """What decides whether its lines run, where the source was there: the function of each is its kind (if, else, for,
    while, except, case, unless: an earlier test that leaves)."""
    timeout_ms: int | None = None
    """After which the backend gives it up."""


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The calls of one rank, in columns."""

    rank: int
    node: int = 0
    host: str = ""
    pid: int | None = None
    attempt: int = 0
    source: str = "recorder"
    """What told of them: recorder, or ring (`RING`)."""
    file: str | None = None
    """Dump that it was read from."""
    calls: Numbers = field(default_factory=Numbers)
    """Places in `CallLog.calls`."""
    sequences: Numbers = field(default_factory=Numbers)
    states: Numbers = field(default_factory=Numbers)
    """One of `UNKNOWN` to `COMPLETED`, plus `RETIRED`."""
    begun_ns: Numbers = field(default_factory=Numbers)
    """When each was made; empty where it is not known."""
    ended_ns: Numbers = field(default_factory=Numbers)
    """When each had returned or was seen to be complete, 0 where it had not; empty where it is not known."""
    clock: str = "wall"
    """wall (since the epoch) or monotonic (of the node)."""
    overwritten: int = 0
    """Earlier calls that the recorder had no room for."""
    groups: tuple[int, ...] = ()
    """Places in `CallLog.groups` of those that this rank says it knows; empty where it does not say."""
    written_ns: int | None = None
    """When its dump was written, since the epoch, by the time of the file; a copy may have a later one."""
    still_ns: int | None = None
    """Nanoseconds for which, by the times of the files, it had called nothing: an earlier dump has the same last
    call."""


@dataclass(frozen=True, slots=True)
class CallLog:
    """The calls of all ranks that were gathered at one time."""

    groups: tuple[ProcessGroup, ...] = ()
    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    """Places in ``frames``, innermost first."""
    calls: tuple[RecordedCall, ...] = ()
    ranks: tuple[RankCalls, ...] = ()
    """Calls of each rank, in order of rank."""
    world: int | None = None
    """Ranks of the job, where something tells."""
    lost: tuple[str, ...] = ()
    """What could not be read, one sentence each."""
    created: tuple[CreatedGroup, ...] = ()
    """The first group of one name that ranks created of different members; empty where there is none."""

    def frames_of(self, call: RecordedCall) -> tuple[Frame, ...]:
        """Return the stack of a call, innermost first; empty where it is not known."""
        return tuple(self.frames[place] for place in self.stacks[call.stack]) if call.stack >= 0 else ()

    def shorten(self, most: int = SAVED_ROWS) -> CallLog:
        """Return what a report keeps: the last rows of each rank, and of the tables what they name."""
        rows = max(SAVED_LEAST, most // max(1, len(self.ranks)))
        table = CallTable(self)
        return table.log([_cut(each, rows) for each in self.ranks], used_only=True)


def _cut(rank: RankCalls, rows: int) -> RankCalls:
    left = len(rank.calls) - rows
    if left <= 0:
        return rank
    columns = ("calls", "sequences", "states", "begun_ns", "ended_ns")
    kept = {name: getattr(rank, name).part(left) for name in columns if len(getattr(rank, name))}
    return dataclasses.replace(rank, overwritten=rank.overwritten + left, **kept)


class CallTable:
    """Builds a `CallLog`: gives everything that repeats a number."""

    def __init__(self, known: CallLog | None = None) -> None:
        log = known or CallLog()
        self._groups = {each: n for n, each in enumerate(log.groups)}
        self._frames = {each: n for n, each in enumerate(log.frames)}
        self._stacks = {each: n for n, each in enumerate(log.stacks)}
        self._calls = {each: n for n, each in enumerate(log.calls)}
        self.world = log.world
        self.lost = list(log.lost)

    def group(self, name: str, description: str = "", ranks: RankSet | None = None) -> int:
        """Return the number of a group; groups of one name with other members are others."""
        return self._groups.setdefault(ProcessGroup(name, description, ranks), len(self._groups))

    def stack(self, frames: Iterable[Frame]) -> int:
        """Return the number of a stack, innermost frame first; -1 for an empty one."""
        places = tuple(self._frames.setdefault(frame, len(self._frames)) for frame in frames)
        return self._stacks.setdefault(places, len(self._stacks)) if places else -1

    def call(self, call: RecordedCall) -> int:
        """Return the number of a call; its group and stack are numbers of this table."""
        return self._calls.setdefault(call, len(self._calls))

    def adopt(self, log: CallLog) -> list[RankCalls]:
        """Take over another log; its ranks are returned with the numbers of this table."""
        groups = [self.group(each.name, each.description, each.ranks) for each in log.groups]
        stacks = [self.stack(log.frames[place] for place in each) for each in log.stacks]
        calls = [
            self.call(
                dataclasses.replace(
                    each, group=groups[each.group], stack=stacks[each.stack] if each.stack >= 0 else -1
                )
            )
            for each in log.calls
        ]
        self.lost += log.lost
        self.world = max(self.world or 0, log.world or 0) or None
        alike = calls == list(range(len(calls)))  # mostly, for ranks of one program
        return [
            dataclasses.replace(
                each,
                calls=each.calls if alike else Numbers(map(calls.__getitem__, each.calls)),
                groups=tuple(groups[n] for n in each.groups),
            )
            for each in log.ranks
        ]

    def log(self, ranks: Sequence[RankCalls], *, used_only: bool = False) -> CallLog:
        """Return the log.

        Args:
            ranks: whose numbers are of this table.
            used_only: leave out of the tables what no row names.
        """
        whole = CallLog(
            groups=tuple(self._groups),
            frames=tuple(self._frames),
            stacks=tuple(self._stacks),
            calls=tuple(self._calls),
            ranks=tuple(sorted(ranks, key=lambda each: (each.rank, each.attempt, each.source))),
            world=self.world,
            lost=tuple(dict.fromkeys(self.lost)),
        )
        return _drop_unused(whole) if used_only else whole


def _drop_unused(log: CallLog) -> CallLog:
    used = sorted({number for rank in log.ranks for number in rank.calls})
    table = CallTable(CallLog(groups=log.groups, world=log.world, lost=log.lost))
    renumbered: dict[int, int] = {}
    for number in used:
        call = log.calls[number]
        stack = table.stack(log.frames_of(call))
        renumbered[number] = table.call(dataclasses.replace(call, stack=stack))
    ranks = [
        dataclasses.replace(each, calls=Numbers(map(renumbered.__getitem__, each.calls)))
        for each in log.ranks
    ]
    return table.log(ranks)
