"""Comparing what the ranks of a job call, from their rings, while it runs.

Where all ranks made the same calls from the same lines nothing is kept. Where they did not, a piece of their calls is
put before the checks; the first piece in which these find anything is the evidence. No rank is asked anything.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.collectives import (
    COMPLETED,
    RING,
    CallLog,
    CallTable,
    CreatedGroup,
    RankCalls,
    RecordedCall,
)
from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.evidence.standstill import Call
from ddpdoctor.facts.wire import INIT, OTHER, POINT_TO_POINT
from ddpdoctor.source import find_conditions
from ddpdoctor.watch.live.rank_rings import RankFinder
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.rings import Ring, Row
from ddpdoctor.watch.run_companions import end_thread

TICK_S = 2.0
"""Seconds between two looks: a ring of 4,096 calls holds them for that long at 2,000 calls a second."""
PIECE, OVERLAP = 256, 64
"""Calls of a group that are judged at once, and how many of them once more with the next: two calls that have changed
places may lie on both sides of a cut."""
MOST_WAITING = 4096
"""Calls of one rank and group that are kept for the others to come to them."""
MOST_KINDS = 20_000
"""Different calls that are told apart."""
MOST_SHARE, FREE_S = 0.01, 1.0
"""Largest share of the job's time that comparing may take, and seconds that are free."""
OVERWRITTEN = "ranks issued collectives faster than they could be compared: some records were overwritten"
GUARDED = 3
"""Most of the user's own frames whose conditions are searched for."""


@dataclass(slots=True)
class _Line:
    """Calls of one rank on one group that the others have not come to yet, or that differ from theirs."""

    numbers: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    def drop(self, upto: int) -> None:
        """Forget the calls up to a number."""
        count = bisect_right(self.numbers, upto)
        del self.numbers[:count], self.calls[:count]


@dataclass(slots=True)
class _Group:
    """One process group of the ranks of this node."""

    members: RankSet
    lines: dict[int, _Line] = field(default_factory=dict)
    judged: int = 0
    """Last number that has been put before the checks."""


@dataclass(slots=True)
class _Rank:
    """What was read of one ring."""

    ring: Ring
    number: int = 0
    kinds: dict[tuple[int, int, int, int], tuple[_Group, int] | None] = field(default_factory=dict)
    names: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """Group -> the numbers that it had in this process: after a new init_process_group names mean others."""
    worlds: int = 0
    """Calls of init_process_group: with each of them the names of groups begin anew."""


class CallComparer:
    """Reads the rings of the ranks of this node and compares their collectives.

    Args:
        processes: where the processes of the run write.
        root: the job's working directory.
        judge: says whether the checks find anything in a log.
    """

    def __init__(self, processes: Path, root: Path, judge: Callable[[CallLog], bool]) -> None:
        self._shorten = Shortener(root)
        self._root = root
        self._judge = judge
        self._finder = RankFinder(processes, self._read_tables)
        self._ranks: dict[Path, _Rank] = {}
        self._groups: dict[tuple[str, str, int], _Group] = {}
        self._created: dict[tuple[int, int], dict[int, Call]] = {}
        """World and name of a group -> by rank the call that created it."""
        self._table = CallTable()
        self._compared: dict[int, int] = {}
        self._lost: list[str] = []
        self._apart: CallLog | None = None
        """The end of the calls of a group, where the last one differs in what the ranks gave it."""
        self.found: CallLog | None = None
        """The piece in which something was found."""

    def read(self, *, last: bool = False) -> None:
        """Take in what the ranks have called since the last time, and compare it.

        Args:
            last: the job has ended: pieces are judged however short they are.
        """
        if self.found is not None:
            return
        rings = self._finder.find()
        for ring in rings:
            known = self._ranks.get(ring.path)
            if known is None:
                if any(other.ring.rank == ring.rank for other in self._ranks.values()):
                    self._restart()  # another process is this rank now
                known = self._ranks[ring.path] = _Rank(ring)
            self._take(known)
        for name, group in self._groups.items():
            self._compare(name, group, RankSet(ring.rank for ring in rings if ring.rank is not None), last)

    def log(self) -> CallLog | None:
        """Return what to keep: the piece in which something was found, else how much was compared; None for nothing."""
        if self.found is not None:
            return self.found
        created = self._find_created()
        if len(self._compared) < 2 and not created:
            return None
        if self._apart is not None:
            return dataclasses.replace(self._apart, lost=tuple(self._lost))
        rows = tuple(
            RankCalls(rank, source=RING, overwritten=count) for rank, count in sorted(self._compared.items())
        )
        return CallLog(ranks=rows, world=self._world_size(), lost=tuple(self._lost), created=created)

    def _world_size(self) -> int | None:
        sizes = [each.ring.world_size for each in self._ranks.values() if each.ring.world_size]
        return max(sizes, default=None)

    def _lose(self, why: str) -> None:
        if why not in self._lost:
            self._lost.append(why)

    def _read_tables(self, rings: Iterable[Ring]) -> None:
        for ring in rings:
            ring.read_tables(self._shorten)

    def _restart(self) -> None:
        self._ranks.clear()
        self._groups.clear()
        self._created.clear()

    def _take(self, known: _Rank) -> None:
        new = known.ring.read_count() - known.number
        if new <= 0:
            return
        rows = known.ring.read_rows(new)
        if rows and rows[0].number > known.number + 1:
            self._lose(OVERWRITTEN)
        for row in rows:
            if row.number <= known.number:
                continue
            if row.flags & (OTHER | POINT_TO_POINT) or not row.group:
                self._note_created(known, row)
                known.number = row.number
                continue
            key = (row.signature, row.site, row.group, row.peer)
            if key not in known.kinds:
                if not known.ring.knows(row) or row.site not in known.ring.sites:
                    known.ring.read_tables(self._shorten)
                known.kinds[key] = self._learn(known, row)
            kind = known.kinds[key]
            known.number = row.number
            if kind is not None:
                line = kind[0].lines.setdefault(known.ring.rank or 0, _Line())
                line.numbers.append(row.ordinal)
                line.calls.append(kind[1])

    def _note_created(self, known: _Rank, row: Row) -> None:
        if row.group or row.flags & POINT_TO_POINT:
            return
        if not known.ring.knows(row):
            known.ring.read_tables(self._shorten)
        if not known.ring.names_group(row):
            return
        call = known.ring.describe(row, row.begin_ns)
        if call.made is None:
            known.worlds += call.op == INIT
        elif len(self._created) < MOST_KINDS:
            self._created.setdefault((known.worlds, int(call.made)), {})[known.ring.rank or 0] = call

    def _find_created(self) -> tuple[CreatedGroup, ...]:
        """Return the first group that ranks created of different members."""
        world = RankSet.span(self._world_size() or 0)
        for (_, name), calls in sorted(self._created.items()):
            parts: dict[RankSet, dict[int, Call]] = {}
            for rank, call in sorted(calls.items()):
                parts.setdefault(call.members or world, {})[rank] = call
            if len(parts) > 1:
                return tuple(
                    CreatedGroup(str(name), members, RankSet(made), next(iter(made.values())).frames)
                    for members, made in parts.items()
                )
        return ()

    def _learn(self, known: _Rank, row: Row) -> tuple[_Group, int] | None:
        """Return group and number of a call that has not been seen before; None where it cannot be told from others."""
        call = known.ring.describe(row, row.begin_ns)
        if (
            not call.frames
            or row.site in known.ring.foreign
            or not call.members
            or not row.signature
            or len(known.kinds) >= MOST_KINDS
        ):
            self._lose("some collectives have no line or no group to compare by")
            return None
        name = (call.group, str(call.members))
        numbers = known.names.setdefault(name, [])
        if row.group not in numbers:
            numbers.append(row.group)
        group = self._groups.setdefault((*name, numbers.index(row.group)), _Group(call.members))
        title = call.group if call.default_group else f"{call.group} of ranks {call.members}"
        number = self._table.call(
            RecordedCall(
                call.op,
                self._table.group(title, "default_pg" if call.default_group else "", call.members),
                inputs=(call.shape,) if call.shape is not None else None,
                input_types=(call.dtype,) if call.dtype is not None else (),
                stack=self._table.stack(call.frames),
                root=call.peer,
                reduction=call.reduction,
                asynchronous=call.asynchronous,
                conditions=self._find_conditions(call.frames),
            )
        )
        return group, number

    def _find_conditions(self, frames: Sequence[Frame]) -> tuple[Frame, ...]:
        own = [frame for frame in frames if frame.source is not None][:GUARDED]
        return tuple(
            Frame(frame.file, found.line, found.kind, owner=frame.owner)
            for frame in own
            for found in find_conditions(str(self._root / frame.file), frame.line)
        )

    def _compare(self, name: tuple[str, str, int], group: _Group, here: RankSet, last: bool) -> None:
        lines = group.lines
        for line in lines.values():
            if len(line.numbers) > MOST_WAITING:  # another rank is far behind, or never comes
                line.drop(line.numbers[-MOST_WAITING])
        expected = set(here) & set(group.members)
        if len(lines) < 2 or (len(lines) < len(expected) and not last):
            return
        if not all(line.numbers for line in lines.values()):
            return
        low = max(line.numbers[0] for line in lines.values())
        high = min(line.numbers[-1] for line in lines.values())
        for line in lines.values():
            line.drop(low - 1)
        if high < low:
            return
        parts = {rank: self._part(line, low, high) for rank, line in lines.items()}
        if any(part is None for part in parts.values()):
            for line in lines.values():
                line.drop(high)  # a call was lost on the way
            self._lose(OVERWRITTEN)
            return
        different = len({tuple(part or ()) for part in parts.values()}) > 1
        if different and not last and high - max(low, group.judged + 1) + 1 < PIECE:
            return
        for rank in parts:
            self._compared[rank] = self._compared.get(rank, 0) + high - max(low, group.judged + 1) + 1
        group.judged = high
        if different:
            piece = self._make_log(name, parts, low)
            if self._judge(piece):
                self.found = piece
            elif last and self._ends_apart(parts):
                self._apart = piece
        for line in lines.values():
            line.drop(high - OVERLAP if different and not last else high)

    def _ends_apart(self, parts: dict[int, list[int] | None]) -> bool:
        """Whether ranks gave the last of their calls other arguments, wherever they made it."""
        calls = self._table.log(()).calls
        last = {calls[part[-1]] for part in parts.values() if part}
        return len({dataclasses.replace(call, stack=-1, conditions=()) for call in last}) > 1

    def _part(self, line: _Line, low: int, high: int) -> list[int] | None:
        """Return the calls from one number to another; None where one is missing."""
        count = high - low + 1
        if line.numbers[count - 1 : count] != [high]:
            return None
        return line.calls[:count]

    def _make_log(self, name: tuple[str, str, int], parts: dict[int, list[int] | None], low: int) -> CallLog:
        rows = []
        for rank, part in parts.items():
            ring = next(each.ring for each in self._ranks.values() if each.ring.rank == rank)
            calls = part or []
            rows.append(
                RankCalls(
                    rank,
                    host=ring.host,
                    pid=ring.pid,
                    attempt=ring.attempt,
                    source=RING,
                    calls=Numbers(calls),
                    sequences=Numbers(range(low, low + len(calls))),
                    states=Numbers([COMPLETED] * len(calls)),
                    overwritten=low - 1,
                )
            )
        return dataclasses.replace(self._table.log(rows, used_only=True), world=self._world_size())


class CallWatch:
    """Compares in a thread of its own while the job runs.

    Args:
        comparer: does it.
        tell: shows one line to the person when something was found; called in the thread.
    """

    def __init__(self, comparer: CallComparer, tell: Callable[[CallLog], object]) -> None:
        self._comparer, self._tell = comparer, tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddpdoctor-calls", daemon=True)
        self._began = time.monotonic()
        self._spent = 0.0
        self.lost: list[str] = []
        self.log: CallLog | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End: what was called since the last look is compared as well."""
        self._stop.set()
        end_thread(self._thread, 5.0)
        if not self._thread.is_alive():
            self._read(last=True)
        self.log = self._comparer.log()

    def _watch(self) -> None:
        while not self._stop.wait(TICK_S):
            spent = time.thread_time()
            if self._spent <= FREE_S + MOST_SHARE * (time.monotonic() - self._began) and not self._read():
                return
            self._spent += time.thread_time() - spent

    def _read(self, *, last: bool = False) -> bool:
        """Return whether there is anything left to be found."""
        try:
            self._comparer.read(last=last)
        except Exception as problem:  # ours; the job goes on
            self.lost.append(f"comparing the collectives of ranks ended: {type(problem).__name__}: {problem}")
            return False
        if self._comparer.found is None:
            return True
        if not last:
            self._tell(self._comparer.found)
        return False
