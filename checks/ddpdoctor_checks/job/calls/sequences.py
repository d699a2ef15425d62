"""The collectives of each process group, rank by rank in order, and what must agree in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.collectives import COMPLETED, RETIRED, RING, CallLog, RankCalls, RecordedCall, Shapes
from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.facts.collectives import COLLECTIVES, NONE, OWN, ROOT, names_with
from ddpdoctor_checks.common.frames import find_user_line, find_user_lines

UNEVEN = names_with(OWN, ROOT, NONE)
"""Collectives whose tensors may differ over ranks: uneven splits, and roots that alone hold the list."""
GATHERING = frozenset({"all_gather"})
"""Those of which each rank gives what it has, and all get the same."""
MEETING = frozenset(row.name for row in COLLECTIVES.values() if row.meets)
"""Collectives that end on no rank before all have called them; a broadcast may end on its root."""

CALLERS = 3
"""The user's lines by which calls of watched ranks are told apart."""
WRAPPER = "torch/nn/parallel/distributed.py"
"""File of DistributedDataParallel."""

Essence = tuple[object, ...]


@dataclass(slots=True)
class Line:
    """The collectives of one rank on one group, by rising sequence number."""

    rank: int
    numbers: Numbers = field(default_factory=Numbers)
    """Sequence numbers; several calls share one where they were coalesced."""
    calls: Numbers = field(default_factory=Numbers)
    states: Numbers = field(default_factory=Numbers)
    whole: bool = True
    """Whether nothing before the first call was overwritten."""
    _plain: bool | None = None

    @property
    def first(self) -> int:
        """First sequence number that is known."""
        return self.numbers[0] if self.numbers else 1

    @property
    def last(self) -> int:
        """Last sequence number; 0 where there was no call."""
        return self.numbers[-1] if self.numbers else 0

    @property
    def is_plain(self) -> bool:
        """Whether each number from the first to the last is there, once."""
        if self._plain is None:
            self._plain = _is_consecutive(self.numbers)
        return self._plain

    def at(self, number: int) -> tuple[int, ...]:
        """Return the calls at a sequence number; none where it is not known."""
        place = self._find(number)
        if place < 0:
            return ()
        end = place
        while end < len(self.numbers) and self.numbers[end] == number:
            end += 1
        return tuple(self.calls.part(place, end))

    def _find(self, number: int) -> int:
        if self.is_plain:
            place = number - self.first
            return place if 0 <= place < len(self.numbers) else -1
        try:
            return list(self.numbers).index(number)
        except ValueError:
            return -1

    def part(self, start: int, stop: int) -> bytes:
        """Return what is equal for ranks that made the same calls from ``start`` to before ``stop``."""
        if self.is_plain:
            return self.calls.part(start - self.first, stop - self.first).to_bytes()
        rows = [
            item
            for n, c in zip(self.numbers, self.calls, strict=True)
            if start <= n < stop
            for item in (n, c)
        ]
        return b"x" + Numbers(rows).to_bytes()

    def state(self, number: int) -> int | None:
        """Return how far the call at a sequence number had come; None where it is not known."""
        place = self._find(number)
        return self.states[place] if place >= 0 else None

    def is_over(self, number: int) -> bool | None:
        """Say whether the call at a number has ended; None where it ended, well or in an error that nobody knows.

        gloo only forgets what has ended; where the rank went on to a further call, it ended well.
        """
        state = self.state(number)
        if state is None:
            return None
        if state & ~RETIRED == COMPLETED:
            return True
        if state & RETIRED:
            return True if self.last > number else None
        return False


@dataclass(slots=True)
class GroupCalls:
    """One process group with its ranks' calls."""

    name: str
    description: str
    members: RankSet
    """All that is known of them: where no dump tells it, those that called something."""
    lines: dict[int, Line]
    """Calls of each member of which there is a dump, by rank."""
    default: bool = False
    certain: bool = True
    """Something tells its members."""

    @property
    def absent(self) -> RankSet:
        """Members of which there is no dump."""
        return self.members.minus(RankSet(self.lines))

    @property
    def title(self) -> str:
        """The group for a sentence; empty for the default group."""
        return "" if self.default else f" of group {self.description or self.name}"


def read_groups(log: CallLog) -> list[GroupCalls]:
    """Return the groups of a log in order of their names, collectives only."""
    lines: dict[str, dict[int, Line]] = {}
    names = [None if call.p2p else log.groups[call.group].name for call in log.calls]
    for row in log.ranks:
        for name, line in _read_rank(row, names).items():
            lines.setdefault(name, {})[row.rank] = line
    known: dict[str, RankSet] = {}
    descriptions: dict[str, str] = {}
    for group in log.groups:
        if group.ranks is not None:
            known[group.name] = known.get(group.name, RankSet()).union(group.ranks)
        descriptions[group.name] = descriptions.get(group.name) or group.description
    dumped = {row.rank: row for row in log.ranks}
    found = []
    for name in sorted(lines):
        default = descriptions.get(name) == "default_pg" or name == "0"
        members = known.get(name)
        certain = members is not None or default
        if members is None:
            # Of two ranks a group has both, or no call on it ever waits.
            whole = default or log.world == 2
            members = RankSet.span(log.world or 0) if whole else RankSet(lines[name])
        listed = set(members)
        own = {rank: line for rank, line in lines[name].items() if rank in listed}
        for rank in listed - own.keys():
            # A rank without a call: known only where nothing of it was overwritten.
            if rank in dumped and not dumped[rank].overwritten:
                own[rank] = Line(rank)
        found.append(GroupCalls(name, descriptions.get(name, ""), members, own, default, certain))
    return found


def _read_rank(row: RankCalls, names: Sequence[str | None]) -> dict[str, Line]:
    """Return group -> the collectives of a rank on it."""
    whole = not row.overwritten
    used = {names[call] for call in set(row.calls)}
    if len(used) == 1 and _is_consecutive(row.sequences):
        name = next(iter(used))
        return (
            {} if name is None else {name: Line(row.rank, row.sequences, row.calls, row.states, whole, True)}
        )
    rows: dict[str, tuple[list[int], list[int], list[int]]] = {}
    for call, number, state in zip(row.calls, row.sequences, row.states, strict=True):
        name = names[call]
        if name is None:
            continue
        numbers, calls, states = rows.setdefault(name, ([], [], []))
        if numbers and number < numbers[-1]:  # the group was destroyed, and another one has its name now
            for column in (numbers, calls, states):
                column.clear()
        numbers.append(number)
        calls.append(call)
        states.append(state)
    return {
        name: Line(row.rank, Numbers(numbers), Numbers(calls), Numbers(states), whole)
        for name, (numbers, calls, states) in rows.items()
    }


def _is_consecutive(numbers: Numbers) -> bool:
    return not numbers or list(numbers) == list(range(numbers[0], numbers[0] + len(numbers)))


def is_ring(log: CallLog) -> bool:
    """Whether the ranks of a watched job wrote these calls down: they are compared for their order only."""
    return any(row.source == RING for row in log.ranks)


class Essences:
    """What must agree over ranks in a call, and its call site, worked out once for each call."""

    def __init__(self, log: CallLog) -> None:
        self.log = log
        self._essences: dict[int, Essence] = {}
        self._sites: dict[int, Frame | None] = {}
        self._paths: dict[int, tuple[Frame, ...]] = {}
        self._deep = is_ring(log)

    def of(self, numbers: tuple[int, ...]) -> tuple[Essence, ...]:
        """Return what must agree in the calls at one sequence number."""
        return tuple(self._one(number) for number in numbers)

    def site(self, numbers: tuple[int, ...]) -> Frame | None:
        """Return the user's own line of a call; None where it is not known."""
        if not numbers:
            return None
        number = numbers[0]
        if number not in self._sites:
            self._sites[number] = find_user_line(self.log.frames_of(self.log.calls[number]))
        return self._sites[number]

    def path(self, numbers: tuple[int, ...]) -> tuple[Frame, ...]:
        """Return the user's lines that a call came from, innermost first: one, or of a watched rank up to `CALLERS`."""
        if not numbers:
            return ()
        number = numbers[0]
        if number not in self._paths:
            site = self.site(numbers)
            own = find_user_lines(self.log.frames_of(self.log.calls[number]))[:CALLERS] if self._deep else ()
            self._paths[number] = own or ((site,) if site is not None else ())
        return self._paths[number]

    def origin(self, numbers: tuple[int, ...]) -> str:
        """Return what of DistributedDataParallel makes a call: ``forward``, ``backward``, ``wrap``, or nothing."""
        frames = self.log.frames_of(self.log.calls[numbers[0]]) if numbers else ()
        for frame in frames:
            if frame.function == "_engine_run_backward":
                return "backward"
            if frame.file.endswith(WRAPPER):
                return (
                    "wrap"
                    if any(f.function == "__init__" and f.file.endswith(WRAPPER) for f in frames)
                    else "forward"
                )
        return ""

    def _one(self, number: int) -> Essence:
        known = self._essences.get(number)
        if known is None:
            known = self._essences[number] = describe_essence(self.log.calls[number])
        return known


def describe_essence(call: RecordedCall) -> Essence:
    """Return what must be equal on all ranks in one call: op, numbers of elements, types, root, reduction.

    Shapes of as many elements fit each other: a view of a tensor is sent as the same bytes.
    """
    sizes: object = None
    types: object = None
    if call.op not in UNEVEN:
        gathers = call.op in GATHERING
        sizes = _count(call.outputs) if gathers else (_count(call.inputs), _count(call.outputs))
        types = call.output_types if gathers else call.input_types
    return (call.op, sizes, types, call.root, call.reduction)


def _count(shapes: Shapes | None) -> tuple[int, ...] | None:
    return None if shapes is None else tuple(math.prod(shape) for shape in shapes)


def conflicting_groups(log: CallLog) -> Mapping[str, dict[RankSet, RankSet]]:
    """Return groups of one name that have other members on other ranks: name -> members -> who says so."""
    said: dict[str, dict[RankSet, list[int]]] = {}
    for rank in log.ranks:
        for place in rank.groups:
            group = log.groups[place]
            if group.ranks is not None:
                said.setdefault(group.name, {}).setdefault(group.ranks, []).append(rank.rank)
    return {
        name: {members: RankSet(ranks) for members, ranks in versions.items()}
        for name, versions in said.items()
        if len(versions) > 1 and _overlap(list(versions))
    }


def _overlap(sets: list[RankSet]) -> bool:
    """Whether two of the sets share a rank: groups of other ranks may well bear the same name."""
    seen: set[int] = set()
    for each in sets:
        ranks = set(each)
        if seen & ranks:
            return True
        seen |= ranks
    return False
