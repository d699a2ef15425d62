"""Asking torch's Flight Recorder of each rank, through the worker server that the hook has started in it.

The server answers from threads of its own, so also for a rank that holds the interpreter's lock. What it says is kept
as dumps, and added to what the ranks wrote down themselves (`recording`).
"""

from __future__ import annotations

import errno
import json
import pickle
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddpdoctor.evidence.collectives import CallLog, CallTable
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.gather.recorder.pickles import NotPlain
from ddpdoctor.gather.recorder.read import take_entries
from ddpdoctor.gather.recorder.rows import Rows
from ddpdoctor.watch.keeping import write_below
from ddpdoctor.watch.readers.recording import join_recorder
from ddpdoctor.watch.readers.rings import Ring

LIMIT_S = 2.0
"""Seconds for the answers of all ranks together: nothing is held up for longer."""
READING_S = 1.0
"""Seconds more to read what came in time of ranks of which one recorder did not answer."""
LARGEST = 16 << 20
"""Bytes of one answer; torch's default of 2,000 entries takes 1.2 MB."""
LAST = 500
"""Entries of a rank that are looked at; the dump has all."""
KEPT_BYTES = 64 << 20
"""Most bytes of the dumps of one run that are kept, but for those taken before it is ended."""
STOPPED = ("T", "t")
"""States of /proc in which no thread of a process runs."""
FOLDER = "recorder"
"""Folder below the run directory, with a folder for each look in it."""
HANDLER = "fr_trace_json"
"""What answers for the recorder of gloo."""
DEVICE_HANDLER = "dump_nccl_trace_json"
"""What answers for the recorder of NCCL, which is one of its own (ProcessGroupNCCL registers it with the server)."""
_HEAD = 4096
"""Bytes of an answer's head."""


def name_socket(private: Path, ring: Ring) -> Path:
    """Return where the server of a rank listens: told by its process, never by what that wrote."""
    return private / f"fr-{ring.pid}-{ring.ticks}"


@dataclass(slots=True)
class _Asked:
    """One question to a rank, and what has come of the answer so far."""

    ring: Ring
    socket: socket.socket
    data: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class _Store:
    """Where the dumps of one look are kept."""

    run: Path
    name: str
    """Name of the folder, below the run directory."""
    room: int | None
    """Bytes; None: as many as there are."""
    written: int = 0

    def keep(self, name: str, data: bytes) -> str | None:
        """Write a dump, where there is room; return why it could not be kept."""
        if self.room is not None and self.written + len(data) > self.room:
            return None  # dumps of this run are kept already
        try:
            write_below(self.run, f"{self.name}/{name}", data)
        except OSError as problem:
            return f"its answer could not be saved: {problem.strerror or problem}"
        self.written += len(data)
        return None


class Recorders:
    """Asks the ranks of this node.

    Args:
        run: the run directory, which gets the dumps.
        private: folder of the sockets.
    """

    def __init__(self, run: Path, private: Path) -> None:
        self._run, self._private = run, private
        self._kept = 0

    def tell(self, look: Standstill, rings: Sequence[Ring], name: str, *, ends: bool = False) -> Standstill:
        """Return a look with what the recorders of its ranks say now.

        Args:
            look: at the ranks.
            rings: of those of this node.
            name: of the folder for the dumps.
            ends: the job is to be ended: then the state of a device's queue may be asked for too.
        """
        deadline = time.monotonic() + LIMIT_S
        here = {(ring.rank, ring.pid): ring for ring in rings}  # of other nodes' ranks some have the same id
        living = [here.get((stand.rank, stand.pid)) if stand.alive else None for stand in look.stands]
        told: dict[int, CallLog | str] = {}
        asked = []
        for stand, ring in zip(look.stands, living, strict=True):
            if ring is not None:
                why = _refrain(ring, stand, ends=ends)
                if why is None:
                    asked.append(ring)
                else:
                    told[ring.pid] = why
        room = None if ends else max(0, KEPT_BYTES - self._kept)
        store = _Store(self._run, f"{FOLDER}/{name}", room)
        _ask(asked, self._private, store, deadline, told)
        self._kept += store.written
        stands = [
            join_recorder(stand, told[ring.pid], look.at) if ring is not None else stand
            for stand, ring in zip(look.stands, living, strict=True)
        ]
        return replace(look, stands=tuple(stands))


def _ask(
    rings: Sequence[Ring], private: Path, store: _Store, deadline: float, told: dict[int, CallLog | str]
) -> None:
    """Find out what each rank's recorders hold, or why they tell nothing."""
    answers: dict[int, list[bytes | str]] = {ring.pid: [] for ring in rings}
    missing = {ring.pid: 1 + _may_use_device(ring) for ring in rings}
    by_pid = {ring.pid: ring for ring in rings}

    def take(pid: int, answer: bytes | str, more_s: float = 0.0) -> None:
        answers[pid].append(answer)
        if len(answers[pid]) == missing[pid]:
            told[pid] = _read(answers[pid], by_pid[pid], store, deadline + more_s)

    with selectors.DefaultSelector() as selector:
        for ring in rings:
            for handler in (DEVICE_HANDLER, HANDLER)[-missing[ring.pid] :]:
                try:
                    asked = _Asked(ring, _connect(name_socket(private, ring), handler))
                    selector.register(asked.socket, selectors.EVENT_READ, asked)
                except OSError as problem:
                    take(ring.pid, _explain(problem))
        try:
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    asked = key.data
                    answer = _receive(asked)
                    if answer is not None:
                        selector.unregister(asked.socket)
                        asked.socket.close()
                        take(asked.ring.pid, answer)
        finally:
            for key in list(selector.get_map().values()):
                key.data.socket.close()
                # What its other recorder has answered in time is read yet.
                take(key.data.ring.pid, f"it did not respond within {LIMIT_S:.0f} s", READING_S)


def _refrain(ring: Ring, stand: Stand, *, ends: bool) -> str | None:
    """Return why a rank is not asked; None where it is.

    For a device's calls torch asks the device how far they are, from the server's thread. That may make a context on
    the first device, which takes memory there: a rank that is to go on is not asked then.
    """
    if ring.no_recorder is not None:
        return ring.no_recorder
    if stand.state in STOPPED:
        return "its process is stopped"
    if ends or not _may_use_device(ring):
        return None
    return "it is queried only before a job is stopped, because its answer may use GPU memory"


def _may_use_device(ring: Ring) -> bool:
    """Whether a rank may have calls of another backend than gloo."""
    backend = (ring.backend or "none").lower()
    if not ring.accelerated:
        return backend not in ("gloo", "none", "undefined", "cpu:gloo")
    groups = (str(group.get("backend") or "gloo").lower() for group in ring.groups.values())
    return any(each != "gloo" for each in (backend, *groups))


def _connect(path: Path, handler: str) -> socket.socket:
    asking = socket.socket(socket.AF_UNIX)
    head = f"POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    try:
        asking.setblocking(False)
        asking.connect(str(path))
        asking.send(head.encode())
    except OSError:
        asking.close()
        raise
    return asking


def _explain(problem: OSError) -> str:
    if problem.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return "it does not listen"
    return f"it cannot be queried: {problem.strerror or problem}"


def _receive(asked: _Asked) -> bytes | str | None:
    """Return the answer once it is whole, or what is wrong with it; None while more has to come."""
    try:
        part = asked.socket.recv(1 << 20)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError as problem:
        return f"it broke off: {problem.strerror or problem}"
    asked.data += part
    if len(asked.data) > LARGEST + _HEAD:
        return f"its answer is larger than {LARGEST >> 20} MiB"
    return None if part else bytes(asked.data)


def _read(answers: Sequence[bytes | str], ring: Ring, store: _Store, deadline: float) -> CallLog | str:
    """Keep the answers of a rank as one dump, and return what it says, or why it says nothing."""
    bodies = [_find_body(each) for each in answers]
    good = [each for each in bodies if isinstance(each, bytes)]
    if not good:
        return next(each for each in bodies if isinstance(each, str))
    if time.monotonic() > deadline:
        return (
            store.keep(f"rank_{ring.rank or 0}.json", good[0])
            or "its answer was saved, but came too late to be read"
        )
    problem = "its answer is not a Flight Recorder dump"
    read = [whole for each in good if (whole := _load(each)) is not None]
    if not read:
        return problem
    whole = _join(read)
    rows = Rows(CallTable())
    try:
        take_entries(whole, rows, LAST)
        dump = _pickle(whole)
    except (ValueError, RecursionError, NotPlain):
        return problem
    return store.keep(f"rank_{ring.rank or 0}", dump) or rows.table.log([rows.finish(ring.rank or 0)])


def _find_body(answer: bytes | str) -> bytes | str:
    """Return what a server answered, or what is wrong with it."""
    if isinstance(answer, str):
        return answer
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[:_HEAD].split(b"\r\n", 1)[0].split()
    if len(status) < 2 or not status[0].startswith(b"HTTP/1."):
        return "its answer is not from a worker server"
    if status[1] != b"200":
        return (
            "this torch's recorder does not respond to it (HTTP status "
            f"{status[1][:3].decode('ascii', 'replace')})"
        )
    return body


def _load(body: bytes) -> dict[str, Any] | None:
    try:
        whole = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(whole, dict):
        return None
    whole.setdefault("entries", [])  # left out where it holds none
    return whole if isinstance(whole["entries"], list) else None


def _join(dumps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the dumps of several recorders of one process as one, its entries by the time at which they were made."""
    first = dumps[0]
    for other in dumps[1:]:
        first["entries"] = sorted([*first["entries"], *other["entries"]], key=_begun)
        for key in ("pg_config", "pg_status"):
            if isinstance(first.get(key), dict) and isinstance(other.get(key), dict):
                first[key] = {**other[key], **first[key]}
    return first


def _begun(entry: object) -> int:
    begun = entry.get("time_created_ns") if isinstance(entry, dict) else None
    return begun if isinstance(begun, int) else 0


def _pickle(whole: dict[str, object]) -> bytes:
    """Return a dump in the form that torch's own tool reads."""
    entries = whole["entries"]
    assert isinstance(entries, list)
    for entry in entries:
        if isinstance(entry, dict):
            entry.setdefault("frames", [])
    return pickle.dumps(whole, protocol=2)
