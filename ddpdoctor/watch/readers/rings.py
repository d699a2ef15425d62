"""Reading the rings of calls that ranks write (``ddpdoctor_watch/calls/mapped.py``), while they write them."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from urllib.parse import urlsplit

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.job import PHASE
from ddpdoctor.evidence.ranks import LARGEST_RANK
from ddpdoctor.evidence.standstill import Call, LoaderStand
from ddpdoctor.facts.events import AnyEvent, End, ExitCall, Group, Milestone, Signature, Start
from ddpdoctor.facts.wire import (
    ASYNC,
    BLIND,
    COUNT_AT,
    END_UNKNOWN,
    HEAD_FORMAT,
    HEADER,
    INIT,
    MAGIC,
    NEW_GROUP,
    POINT_TO_POINT,
    RAISED,
    RECORD_FORMAT,
    WRAP,
)
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.readers.events import DAMAGED, read_events
from ddpdoctor.watch.readers.records import Shortener, read_phase
from ddpdoctor.watch.readers.timing import read_newest

RECORD = struct.Struct(RECORD_FORMAT)
HEAD = struct.Struct(HEAD_FORMAT)
MOST_EVENTS = 16 << 20
"""Bytes of a process's events that are looked through for what the numbers mean."""
MOST_CAPACITY = 1 << 20
_NAME = re.compile(r"[0-9]{1,10}-[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Row:
    """One record, its numbers as they stand."""

    number: int
    begin_ns: int
    end_ns: int
    ordinal: int
    signature: int
    site: int
    group: int
    peer: int
    tag: int
    flags: int
    thread: int

    @property
    def open(self) -> bool:
        """It has not come back, as far as can be seen."""
        return self.end_ns == 0 and not self.flags & END_UNKNOWN


@dataclass(slots=True)
class Ring:
    """The ring of one process and the tables that its journal holds."""

    path: Path
    pid: int
    ticks: int
    rank: int | None = None
    host: str = ""
    attempt: int = 0
    world_size: int | None = None
    given_size: int | None = None
    """World size that its launcher gave it."""
    asked_size: int | None = None
    """World size that it has asked init_process_group for."""
    port: int | None = None
    """Port at which its init_process_group looks for the first rank; None where that is not known."""
    backend: str | None = None
    meeting: tuple[object, ...] = ()
    """Where the ranks of its job meet: equal for those of one job that are equally far."""
    signatures: dict[int, Signature] = field(default_factory=dict)
    sites: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    """Call sites in threads of libraries, of which no line is the user's."""
    groups: dict[int, Group] = field(default_factory=dict)
    loaders: dict[tuple[str, int], LoaderStand] = field(default_factory=dict)
    exit_frames: tuple[Frame, ...] = ()
    ended: bool = False
    """Whether its interpreter has said that it ends."""
    status: int | None = None
    """Exit status with which its interpreter said that it ends; 1 where an exception came out of it."""
    main_thread: int = 0
    accelerated: bool = False
    """Whether its torch was built for a device beside the processor."""
    no_recorder: str | None = None
    """Why torch's recorder cannot be asked."""
    spent: tuple[float, ...] = ()
    """Seconds of its newest steps by phase, as it wrote them down last."""
    named: str | None = None
    """The program's own name for what it does."""
    blind: bool = False
    """Whether its process has stopped writing calls down: which it has made since is not known."""
    _wrappers: dict[int, tuple[int, list[int] | None]] = field(default_factory=dict)
    """Number of a wrapper in its process -> the how-manyth of its group it is, and the ranks of the group."""
    _main_trains: bool = False
    """Whether its main thread was seen in other calls than those that make groups."""
    _offset: int = 0
    _capacity: int = 0

    def read_written_s(self) -> float:
        """Return when its process last wrote to its journal, in seconds since the epoch; 0 where that is not known."""
        try:
            return self.path.with_suffix(".jsonl").stat().st_mtime
        except OSError:
            return 0.0

    def read_count(self) -> int:
        """Return how many calls were written; 0 where the file is not (yet) one of ours."""
        try:
            with open_regular(self.path) as file:
                head = file.read(COUNT_AT + 8)
        except OSError:
            return 0
        self.blind = self.blind or head[:8] == BLIND
        if len(head) < COUNT_AT + 8 or head[:8] != MAGIC:
            return 0
        _, capacity, size, _, _, self.main_thread = HEAD.unpack_from(head)
        if size != RECORD.size or not 0 < capacity <= MOST_CAPACITY:
            return 0
        self._capacity = capacity
        return int.from_bytes(head[COUNT_AT:], "little")

    def read_rows(self, most: int) -> list[Row]:
        """Return the newest records, the newest last; one that is being overwritten is left out."""
        count = self.read_count()
        rows: list[Row] = []
        if not count:
            return rows
        first = max(1, count - min(most, self._capacity) + 1)
        try:
            with open_regular(self.path) as file:
                while first <= count:  # in one piece, or two where it goes on at the beginning of the file
                    place = (first - 1) % self._capacity
                    size = min(count - first + 1, self._capacity - place)
                    file.seek(HEADER + place * RECORD.size)
                    data = file.read(size * RECORD.size)
                    whole = data[: len(data) // RECORD.size * RECORD.size]
                    for number, fields in enumerate(RECORD.iter_unpack(whole), first):
                        if fields[0] == number:
                            rows.append(Row(*fields))
                    first += size
        except OSError:
            return []
        return rows

    def read_tables(self, shorten: Shortener) -> None:
        """Read what the journal has got since the last time.

        Args:
            shorten: names files and reads source lines.
        """
        try:
            with open_regular(self.path.with_suffix(".jsonl")) as file:
                file.seek(self._offset)
                data = file.read(MOST_EVENTS)
        except OSError:
            return
        end = data.rfind(b"\n") + 1
        self._offset += end
        for event in read_events(data[:end]):
            try:
                self._take(event, shorten)
            except DAMAGED:
                continue  # damaged; numbers without a meaning are shown as such

    def _take(self, event: AnyEvent, shorten: Shortener) -> None:
        if event["event"] == "signature":
            for name in ("op", "dtype", "device", "reduction"):
                if not isinstance(event.get(name), (str, NoneType)):
                    raise TypeError(f"{name} is no text")
            if any(type(size) is not int for size in event.get("shape") or ()):
                raise TypeError("a size is no number")
            self.signatures[int(event["number"])] = event
            if event.get("op") == WRAP and isinstance(event.get("ranks"), list):
                alike = sum(ranks == event["ranks"] for _, ranks in self._wrappers.values())
                self._wrappers.setdefault(int(event["index"]), (alike + 1, event["ranks"]))
        elif event["event"] == "site":
            self.sites[int(event["number"])] = shorten.frames(event["frames"])
            if event.get("foreign"):
                self.foreign.add(int(event["number"]))
        elif event["event"] == "group":
            self.groups[int(event["number"])] = event
        elif event["event"] == "torch":
            shorten.learn(event)
            self.accelerated = bool(event.get("cuda") or event.get("hip"))
        elif event["event"] == "recorder":
            self.no_recorder = str(event["problem"])[:500] if event.get("problem") else None
        elif event["event"] == "times":
            self.spent = read_newest(event)
        elif event["event"] == "start":
            shorten.learn(event)
            self.host = str(event.get("host") or self.host)
            self.attempt = int(event.get("attempt") or 0)
            self.meeting = (event.get("run_id"), *_read_place(event))
            if event.get("role") == "rank" and isinstance(event.get("rank"), int):
                self.rank = event["rank"]
                self.given_size = _read_number(event.get("world_size"))
        elif event["event"] == "init":
            if isinstance(event.get("rank"), int):
                self.rank = event["rank"]
            self.world_size = event.get("world_size") or self.world_size
            self.backend = event.get("backend") or self.backend
        elif event["event"] == "milestone" and event.get("name") == PHASE:
            self.named = read_phase(event)
        elif event["event"] == "milestone" and event.get("name") == "init-begin":
            detail, variables = event.get("detail") or {}, event.get("variables") or {}
            self.asked_size = _read_number(detail.get("world_size"), variables.get("WORLD_SIZE"))
            method = detail.get("init_method")
            if method not in (None, "env://"):
                self.meeting = (str(method),)
                self.port = _read_port(str(method))
            else:
                self.meeting = (*self.meeting[:1], *_read_place(event))
                self.port = _read_number(variables.get("MASTER_PORT")) if not detail.get("store") else None
            if self.rank is None:
                self.rank = _read_number(detail.get("rank"), variables.get("RANK"))
        elif event["event"] == "loader":
            frames = shorten.frames(event.get("frames"))
            length, batch = event.get("length"), event.get("batch_size")
            place = (frames[0].file, frames[0].line) if frames else ("", 0)
            self.loaders.pop(place, None)  # to the end
            self.loaders[place] = LoaderStand(
                length=length if isinstance(length, int) else None,
                number=int(event.get("number") or 1),
                batch_size=batch if isinstance(batch, int) else None,
                drop_last=bool(event.get("drop_last")),
                sampler=event.get("sampler"),
                frames=frames,
            )
        elif event["event"] == "exit-call":
            self.exit_frames = shorten.frames(event.get("frames"))
            self.ended, self.status = True, _read_status(event)
        elif event["event"] == "exception" and event.get("kind") == "uncaught":
            self.status = 1
        elif event["event"] == "end":
            self.ended = True
            self.status = self.status if self.status is not None else _read_status(event)

    def knows(self, row: Row) -> bool:
        """Whether the tables say what a record's numbers mean."""
        return row.signature in self.signatures and (not row.group or row.group in self.groups)

    def names_group(self, row: Row) -> bool:
        """Whether a record says what the name of a group means: that it was created, or that all names begin anew."""
        op = self.signatures.get(row.signature, {}).get("op") if not row.group else None
        return op in (NEW_GROUP, INIT)

    def find_thread(self, rows: Sequence[Row]) -> int:
        """Return the thread that trains: the main thread, unless it only makes groups for another one (Ray).

        Args:
            rows: of this ring, the newest last.
        """
        mine = [row for row in rows if row.thread == self.main_thread]
        known = [row for row in mine if self.knows(row)]
        self._main_trains = self._main_trains or any(not self.names_group(row) for row in known)
        if self._main_trains or len(known) < len(mine):
            return self.main_thread
        return next(
            (row.thread for row in reversed(rows) if row.thread != self.main_thread), self.main_thread
        )

    def describe(self, row: Row, now_ns: int) -> Call:
        """Return what a record says.

        Args:
            row: of this ring.
            now_ns: monotonic, for its age.
        """
        signature = self.signatures.get(row.signature, {})
        group = self.groups.get(row.group, {})
        shape = signature.get("shape")
        ranks = group.get("ranks")
        name = str(group.get("name") or "")
        point = bool(row.flags & POINT_TO_POINT)
        op = str(signature.get("op") or "unknown")
        index = 0
        if not row.group:
            ranks = signature.get("ranks")
            if op == INIT and self.asked_size is not None:
                ranks = range(self.asked_size)
            elif op.startswith(WRAP):
                index, ranks = self._wrappers.get(int(signature.get("index") or 0), (0, None))
        return Call(
            op=op,
            group=name,
            members=RankSet(int(rank) for rank in ranks) if isinstance(ranks, (list, range)) else RankSet(),
            ordinal=row.ordinal,
            index=index,
            shape=tuple(int(size) for size in shape) if isinstance(shape, list) else None,
            dtype=signature.get("dtype"),
            device=signature.get("device"),
            reduction=signature.get("reduction"),
            peer=row.peer if row.peer >= 0 else None,
            tag=row.tag if point else None,
            asynchronous=bool(row.flags & ASYNC),
            point_to_point=point,
            default_group=bool(group.get("default")),
            returned=None if row.flags & END_UNKNOWN else row.end_ns != 0,
            raised=bool(row.flags & RAISED),
            reduces=signature.get("reduces") is not False,
            age_s=max(0.0, (now_ns - row.begin_ns) / 1e9),
            took_s=(row.end_ns - row.begin_ns) / 1e9 if row.end_ns else None,
            frames=self.sites.get(row.site, ()),
            made=str(row.tag - 1) if op == NEW_GROUP and row.tag > 0 else None,
        )


def _read_number(*given: object) -> int | None:
    """Return the first that is a number from 0 on, or the text of one."""
    for each in given:
        text = str(each) if isinstance(each, (int, str)) else ""
        if text.isdecimal() and len(text) < 8 and int(text) <= LARGEST_RANK:
            return int(text)
    return None


def _read_place(event: Start | Milestone) -> tuple[str, str]:
    """Return where ranks meet by their variables."""
    variables = event.get("variables") or {}
    return str(variables.get("MASTER_ADDR")), str(variables.get("MASTER_PORT"))


def _read_port(method: str) -> int | None:
    """Return the port of an ``init_method`` like ``tcp://10.0.0.1:29500``."""
    try:
        return urlsplit(method).port if method.startswith("tcp://") else None
    except ValueError:
        return None


def _read_status(event: ExitCall | End) -> int | None:
    status = event.get("status")
    return status if isinstance(status, int) and not isinstance(status, bool) else None


def find_rings(processes: Path, known: dict[Path, Ring]) -> list[Ring]:
    """Return the rings of a run, those that are known as they are.

    A process that has called nothing yet has no file of calls; it may be a rank all the same.
    """
    found: list[Ring] = []
    try:
        names = sorted({name.rpartition(".")[0] for name in os.listdir(processes) if name.endswith(".jsonl")})
    except OSError:
        return found
    for name in names:
        path = processes / f"{name}.ring"
        ring = known.get(path)
        if ring is None:
            pid, _, ticks = path.stem.partition("-")
            if not _NAME.fullmatch(path.stem):
                continue
            ring = known[path] = Ring(path, int(pid), int(ticks))
        found.append(ring)
    return found
