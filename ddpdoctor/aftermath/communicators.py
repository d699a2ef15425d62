"""Calls of NCCL that a log lists (``NCCL_DEBUG=INFO`` with ``NCCL_DEBUG_SUBSYS=COLL``), by communicator."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

KEPT = 512
"""Last calls that are kept of a communicator."""
MOST = 4096
"""Communicators of processes that are kept of one log."""
_PROCESS = re.compile(
    rb"(?<![\w.-])(?P<host>[\w.-]{1,255}):(?P<pid>\d{1,10}):\d{1,10} \[\d{1,5}\] (?:NCCL )?INFO "
)
_CALL = re.compile(
    rb"(?P<op>[A-Z]\w{2,24}): opCount (?P<number>[\da-f]{1,16}) sendbuff \S{1,20} recvbuff \S{1,20} "
    rb"count (?P<count>\d{1,19}) datatype (?P<dtype>\d{1,3}) op (?P<reduction>\d{1,10}) root (?P<root>\d{1,7}) "
    rb"comm (?P<comm>0x[\da-f]{1,16}) \[nranks=\d{1,7}\]"
)
"""NCCL's line for each call it is given (src/enqueue.cc)."""
_MEMBER = re.compile(
    rb"comm (?P<comm>0x[\da-f]{1,16}) rank (?P<rank>\d{1,7}) nranks (?P<nranks>\d{1,7})"
    rb"(?:.{0,120}? commId (?P<id>0x[\da-f]{1,16}))?"
)
"""NCCL's line when a communicator is set up (src/init.cc); before 2.15 without what it is called on all ranks."""
_POINT_TO_POINT = frozenset({"Send", "Recv"})
_ROOTED = frozenset({"Broadcast", "Reduce", "Gather", "Scatter"})
_REDUCING = frozenset({"AllReduce", "Reduce", "ReduceScatter"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call, without what may differ between ranks."""

    op: str
    count: int
    dtype: int
    reduction: int | None
    root: int | None


@dataclass(slots=True)
class Communicator:
    """One process's end of a communicator."""

    host: str
    pid: int
    rank: int | None = None
    size: int = 0
    id: str | None = None
    """What it is called on all ranks."""
    calls: deque[tuple[int, int, Call]] = field(default_factory=lambda: deque(maxlen=KEPT))
    """NCCL's number of the call, the line of the log, and the call."""
    point_to_point: bool = False
    """It also sends and receives, which only some ranks do: then numbers differ between ranks."""


class CommunicatorReader:
    """Collects the calls of a log, stretch by stretch."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int, str], Communicator] = {}
        self._line = 1

    def take(self, data: bytes) -> None:
        """Take a stretch that ends with a line."""
        for _, line in _find_lines(data, b" nranks "):
            self._note_member(line)
        counted, number = 0, self._line
        for start, line in _find_lines(data, b": opCount "):
            number += data.count(b"\n", counted, start)
            counted = start
            self._note_call(line, number)
        self._line = number + data.count(b"\n", counted)

    def _end_of(self, line: bytes, comm: bytes) -> Communicator | None:
        process = _PROCESS.search(line)
        if process is None:
            return None
        key = (process["host"].decode(), int(process["pid"]), comm.decode())
        if key not in self.found:
            if len(self.found) >= MOST:
                return None
            self.found[key] = Communicator(key[0], key[1])
        return self.found[key]

    def _note_member(self, line: bytes) -> None:
        member = _MEMBER.search(line)
        end = self._end_of(line, member["comm"]) if member is not None else None
        if member is not None and end is not None:
            end.rank, end.size = int(member["rank"]), int(member["nranks"])
            end.id = member["id"].decode() if member["id"] else end.id

    def _note_call(self, line: bytes, number: int) -> None:
        found = _CALL.search(line)
        end = self._end_of(line, found["comm"]) if found is not None else None
        if found is None or end is None:
            return
        op = found["op"].decode()
        if op in _POINT_TO_POINT:
            end.point_to_point = True
            return
        call = Call(
            op,
            int(found["count"]),
            int(found["dtype"]),
            int(found["reduction"]) if op in _REDUCING else None,
            int(found["root"]) if op in _ROOTED else None,
        )
        end.calls.append((int(found["number"], 16), number, call))


def _find_lines(data: bytes, word: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield start and text of each line that holds a word."""
    position = data.find(word)
    while position >= 0:
        start = data.rfind(b"\n", 0, position) + 1
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        yield start, data[start : min(end, start + 1000)]
        position = data.find(word, end)
