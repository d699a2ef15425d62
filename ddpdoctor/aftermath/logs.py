"""Streaming one log of any size through what is known: texts, tracebacks, dumps, the agent's lines.

Most of a log is skipped at the speed of a search over raw bytes; only around a word that begins something are lines
looked at one by one. Memory is bounded by a stretch of the file and by what is kept.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ddpdoctor.aftermath.agent import AgentReader
from ddpdoctor.aftermath.communicators import Communicator, CommunicatorReader
from ddpdoctor.aftermath.faults import Dump, FaultReader
from ddpdoctor.aftermath.lines import SEGMENT_LIMIT, Line, plain, read_place, read_prefix, split_line
from ddpdoctor.aftermath.notable import NotableReader
from ddpdoctor.aftermath.shapes import ShapeReader
from ddpdoctor.aftermath.stamps import LOOK_BACK, Stamp, last_stamp, read_stamp
from ddpdoctor.aftermath.stretches import LONGEST_LINE
from ddpdoctor.aftermath.tracebacks import Told, TracebackReader
from ddpdoctor.evidence.job import NotableLine, TextMatch
from ddpdoctor.evidence.texts.matching import NOISE, find_entry, match_line, scan_chunk
from ddpdoctor.gather.scrub import scrub

MATCHES = 2000
"""Different texts that are kept of one log: the table has some 150, times ranks that speak with a prefix."""
TEXT_LIMIT = 4000
MEMBERS = 65536
"""Processes whose rank NCCL names that are kept of one log."""
TRIGGERS = (
    b"Traceback (most recent call last)",
    b"Fatal Python error",
    b"failed (exitcode",
    b"Failures:",
    b"SyntaxError: ",
    b"IndentationError: ",
    b"TabError: ",
    b"torch/distributed/run.py",
    b"worker group successfully finished",
)
DATED_BACK = 64
"""Texts of a log for which the time of the line before is looked up."""
BACK = 6
"""Lines before a trigger that are looked at: a syntax error's place and source stand before its name."""
BUDGET = 100_000_000
"""Work that one log may cost: characters of lines that are read closely, and `LINE_COST` for each. 1,024 tracebacks of
40 lines cost a tenth of it. The search for such lines is not counted."""
LINE_COST = 200
PIECE = 1 << 18
"""Bytes after which it is looked whether work is left: what a piece may cost is bounded by the lines in it."""
FOLLOW = 1 << 14
"""Bytes that are read at a time while a traceback or a dump goes on."""
PIECES_HELD = 4
"""Pieces at the end of a log that are read although no work is left."""
KEPT = 2000
"""Tracebacks that are kept of one log, the last ones: what ended a job comes late."""
_NCCL = re.compile(
    r"(?<![\w.-])(?P<host>[\w.-]{1,255}):(?P<pid>\d{1,10}):\d{1,10} \[(?P<device>\d{1,5})\] (?=NCCL |\S{1,80}:\d)"
)
"""NCCL's prefix: host, process id, thread id, device; a time, or the rest of another line, may stand before."""
_RANK_SAID = re.compile(r"\[(?:PG (?:ID )?\d[^\[\]]{0,160} )?Rank (\d{1,7})\]")
"""c10d's own prefix, which older releases put on lines without ``[rank3]:``."""
_KERNEL = re.compile(r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?(?P<host>[\w.-]{1,64}) kernel: ")
"""syslog's prefix of the kernel's lines, without a time in front that was taken off."""
_KERNELS = re.compile(
    rb"(?m)^(?:\[ {0,8}\d{1,9}\.\d{1,9}\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d|[^\n]{1,120}? kernel: )"
)
"""dmesg, ``dmesg -T``, and syslog or journalctl -k."""
NAMING = ("pid", "pids", "local_rank", "bus", "xid", "node", "process", "bandwidth", "waiter", "other")
"""Parts of a text that say something else for each process, device or run."""
FELL_OFF = "device-fell-off"
"""Entry of the table that newer drivers spread over lines: which GPU, then what became of it."""
_GPU_ABOVE = re.compile(rb"NVRM: The NVIDIA GPU ([\da-fA-F]{4}:[\da-fA-F]{2}:[\da-fA-F]{2}\.\d)")
MEMBER = "nccl-member"
"""Entry of the table in which NCCL says which rank a process is."""


@dataclass(slots=True)
class Text:
    """A text that the table knows, and whose it may be."""

    match: TextMatch
    local_rank: int | None = None
    label: int | None = None
    stamp: Stamp | None = None
    """Time of the line."""
    before: Stamp | None = None
    """Time of the last dated line before it, of the first texts of a log."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process as NCCL names it when a communicator has been set up."""

    rank: int
    size: int
    """Ranks of the communicator; the largest one of a process is taken for the world."""
    device: int
    bus: str = ""


@dataclass(slots=True)
class LogFacts:
    """What one log holds."""

    name: str
    told: list[Told] = field(default_factory=list)
    dumps: list[Dump] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    notable: tuple[NotableLine, ...] = ()
    agent: AgentReader = field(default_factory=AgentReader)
    lines: int = 0
    bytes: int = 0
    agent_seen: bool = False
    unfinished: int = 0
    unread: int = 0
    """Bytes in the middle that were not read closely, because so much before them had to be."""
    dropped: int = 0
    """Texts and tracebacks beyond what is kept."""
    kernel: bool = False
    """Whether it is a node's kernel log."""
    last: Stamp | None = None
    """Time of its last dated line."""
    members: dict[tuple[str, int], Member] = field(default_factory=dict)
    """Host and process id -> which rank it is, as NCCL says."""
    communicators: dict[tuple[str, int, str], Communicator] = field(default_factory=dict)

    def attempt_at(self, line: int) -> int:
        """Return the agent's attempt to which a line belongs: each ends where the agent names who failed."""
        return bisect.bisect_left(self.agent.exit_lines, line)


class LogReader:
    """Reads one log."""

    def __init__(self, name: str, *, labelled: bool = False) -> None:
        self.facts = LogFacts(name)
        self._labelled = labelled
        self._tracebacks = TracebackReader()
        self._faults = FaultReader()
        self._notable = NotableReader(name, labelled=labelled)
        self._kept: dict[tuple[object, ...], Text] = {}
        self._left = BUDGET
        self._shapes = ShapeReader(TRIGGERS)
        self._communicators = CommunicatorReader()
        self._held: deque[bytes] = deque()
        self._tail = b""
        self._number = 1
        """Number of the line with which the next stretch begins."""

    def take(self, data: bytes) -> None:
        """Take a stretch that ends with a line."""
        self._communicators.take(data)
        lines = data.count(b"\n")
        if 2 * (len(data) + LINE_COST * lines) <= self._left:  # whatever is in it
            self._read_parts(data, lines)
            return
        position = 0
        while position < len(data):
            cut = data.find(b"\n", position + PIECE) + 1 or len(data)
            piece, position = data[position:cut], cut
            if self._left >= 0:
                self._read(piece, piece.count(b"\n"))
                continue
            self._held.append(piece)  # no work is left for it, unless it is one of the last
            if len(self._held) > PIECES_HELD:
                self._skip(self._held.popleft())

    def _read_parts(self, data: bytes, lines: int) -> None:
        """Read what is worth it of a stretch; what is begun there is read to its end."""
        parts = self._shapes.find(data)
        if parts is None:
            self._read(data, lines)
            return
        begin, position, before = self._number, 0, self.facts.bytes
        if self._busy:
            position = self._read_on(data, 0, parts[0][1] if parts else len(data))
        for number, (first, start, end) in enumerate(parts):
            if start > position:
                self._number = begin + first
                self._tail = data[max(0, start - LOOK_BACK) : start]
            part = data[max(start, position) : end]
            self._read(part, part.count(b"\n"))
            limit = parts[number + 1][1] if number + 1 < len(parts) else len(data)
            position = self._read_on(data, end, limit) if self._busy else end
        self._notable.pass_over(data, begin, lines)
        self._number = begin + lines
        self.facts.bytes = before + len(data)
        self._tail = (self._tail + data)[-LOOK_BACK:] if len(data) < LOOK_BACK else data[-LOOK_BACK:]

    def _read_on(self, data: bytes, position: int, limit: int) -> int:
        """Read on while something has been begun; return where that ended."""
        while self._busy and position < limit:
            end = data.find(b"\n", min(position + FOLLOW, limit) - 1) + 1 or len(data)
            piece = data[position : min(end, limit)]
            self._read(piece, piece.count(b"\n"))
            position = min(end, limit)
        return position

    def _skip(self, piece: bytes) -> None:
        self._number += piece.count(b"\n")
        self.facts.bytes += len(piece)
        self.facts.unread += len(piece)

    def _read(self, data: bytes, lines: int) -> None:
        self._read_lines(data)
        self._read_texts(data)
        self._notable.take(data, self._number, lines)
        self._number += lines
        self.facts.bytes += len(data)
        self._tail = (self._tail + data[-LOOK_BACK:])[-LOOK_BACK:]

    def finish(self) -> LogFacts:
        """Return what was found."""
        for piece in self._held:  # what ended a job comes late
            self._read(piece, piece.count(b"\n"))
        facts = self.facts
        facts.agent.finish()
        self._faults.finish()
        facts.told = self._tracebacks.finish()[-KEPT:]
        facts.dumps = self._faults.done[-KEPT:]
        facts.texts = list(self._kept.values())
        facts.notable = self._notable.finish()
        facts.communicators = self._communicators.found
        facts.last = last_stamp(self._tail)
        facts.kernel = _KERNELS.search(self._tail) is not None
        facts.lines, facts.unfinished = self._number - 1, self._tracebacks.unfinished
        return facts

    @property
    def _busy(self) -> bool:
        return self._tracebacks.busy or self._faults.busy or self.facts.agent.busy

    def _read_lines(self, data: bytes) -> None:
        position, number = 0, self._number
        search = _Search(data)
        while position < len(data):
            if not self._busy:
                start = search.next(position)
                if start < 0:
                    return
                number += data.count(b"\n", position, start)
                position = start
            end = data.find(b"\n", position)
            end = len(data) if end < 0 else end
            self._feed(data[position : min(end, position + LONGEST_LINE)], number)
            position, number = end + 1, number + 1

    def _feed(self, raw: bytes, number: int) -> None:
        self._left -= LINE_COST + min(len(raw), SEGMENT_LIMIT)
        for line in split_line(raw.rstrip(b"\r"), number, labelled=self._labelled):
            self.facts.agent.feed(line)
            if not self.facts.agent.reads(line.key):
                self._tracebacks.feed(line)
                self._faults.feed(line)
            self.facts.agent_seen |= "torch/distributed/" in line.text and "run.py" in line.text
        if len(self._tracebacks.done) > 2 * KEPT:
            self.facts.dropped += KEPT
            del self._tracebacks.done[:KEPT]

    def _read_texts(self, data: bytes) -> None:
        counted, number = 0, self._number
        for offset, text, hits in scan_chunk(data, self._spend):
            number += data.count(b"\n", counted, offset)
            counted = offset
            line = read_prefix(plain(text), number, labelled=self._labelled)
            for entry, groups in hits:
                if entry == FELL_OFF and "bus" not in groups:
                    named = _GPU_ABOVE.findall(data[max(0, offset - 400) : offset])
                    groups = {**groups, "bus": named[-1].decode()} if named else groups
                kept = self._keep(entry, line, groups)
                if kept is not None:
                    kept.stamp = read_stamp(text)
                    if len(self._kept) <= DATED_BACK and find_entry(entry).role != NOISE:
                        kept.before = last_stamp(data[:offset]) or last_stamp(self._tail)

    def _spend(self, size: int) -> None:
        """Note that a line was compared with the table."""
        self._left -= LINE_COST + size

    def _keep(self, entry: str, line: Line, groups: dict[str, str]) -> Text | None:
        """Keep a text; return it where it is a new one."""
        attempt = self.facts.attempt_at(line.number)
        own = _NCCL.search(line.text)
        if entry == MEMBER:
            self._keep_member(own, groups)
            return None
        kernel = _KERNEL.match(line.text)
        said = _RANK_SAID.search(line.text) if line.rank is None else None
        rank = int(said[1]) if said else line.rank
        # What names a process or a device says something else for each.
        named = tuple(groups.get(name) for name in NAMING)
        host = own["host"] if own else kernel["host"] if kernel else ""
        key = (entry, line.key, rank, attempt, host, own["pid"] if own else None, named)
        known = self._kept.get(key)
        if known is not None:
            known.match = _count(known.match)
        elif len(self._kept) >= MATCHES:
            self.facts.dropped += 1
        else:
            match = TextMatch(
                entry=entry,
                text=scrub(line.text)[:TEXT_LIMIT],
                groups={name: scrub(value) for name, value in groups.items()},
                host=host,
                pid=int(own["pid"]) if own else None,
                rank=rank,
                attempt=attempt,
                stream="log",
                file=self.facts.name,
                line=line.number,
            )
            self._kept[key] = Text(match, *read_place(line))
            return self._kept[key]
        return None

    def _keep_member(self, own: re.Match[str] | None, groups: dict[str, str]) -> None:
        if own is None or len(self.facts.members) >= MEMBERS:
            return
        place = (own["host"], int(own["pid"]))
        member = Member(
            int(groups["rank"]), int(groups["nranks"]), int(groups["device"]), groups.get("bus", "").lower()
        )
        known = self.facts.members.get(place)
        if known is None or member.size > known.size:
            self.facts.members[place] = member


def read_told(told: Iterable[tuple[int, str]], name: str) -> list[Text]:
    """Return the texts that the table knows of lines that were made of a tool's output."""
    return [
        Text(
            TextMatch(
                entry=entry,
                text=scrub(words)[:TEXT_LIMIT],
                groups=groups,
                stream="log",
                file=name,
                line=number,
            )
        )
        for number, words in told
        for entry, groups in match_line(words)
    ]


def _count(match: TextMatch) -> TextMatch:
    return dataclasses.replace(match, count=match.count + 1)


class _Search:
    """Finds the next line of a stretch at which something may begin."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._next = dict.fromkeys(TRIGGERS, -2)

    def next(self, position: int) -> int:
        """Return where the next line that is worth reading begins, from ``position``; -1 where there is none."""
        hits = []
        for trigger, known in self._next.items():
            if known != -1 and known < position:
                known = self._next[trigger] = self._data.find(trigger, position)
            if known >= 0:
                hits.append((known, trigger))
        if not hits:
            return -1
        hit, trigger = min(hits)
        start = self._data.rfind(b"\n", position, hit) + 1 or position
        if trigger.endswith(b"Error: "):
            for _ in range(BACK):
                if start <= position:
                    break
                start = self._data.rfind(b"\n", position, start - 1) + 1 or position
        return start
