"""Made-up Flight Recorder dumps, byte for byte as torch writes them (torch/csrc/jit/serialization/pickler.cpp)."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

SITE = "/opt/venv/lib/python3.11/site-packages/torch"
BACKWARD = (
    (f"{SITE}/autograd/graph.py", 979, "_engine_run_backward"),
    (f"{SITE}/autograd/__init__.py", 395, "backward"),
    (f"{SITE}/_tensor.py", 623, "backward"),
)
WRAPPER = (f"{SITE}/distributed/c10d_logger.py", 83, "wrapper")
USER = (
    ("/job/train.py", 210, "train"),
    ("/job/train.py", 260, "main"),
    ("/job/train.py", 264, "<module>"),
)
TIMEOUT_MS = 600_000
"""Torch's default with NCCL."""
STARTED_NS = 1_795_294_343_312_371_103


class _Writer:
    def __init__(self, dump: Mapping[str, Any]) -> None:
        self.out = bytearray(b"\x80\x02")
        self._uses = Counter(_mark(frame) for entry in dump["entries"] for frame in entry["frames"])
        """torch remembers what it has to write more than once."""
        self.times: list[int] = []
        """Offsets of times, so that another rank's file can be made by changing them."""
        self._memo: dict[Any, int] = {}
        self._count = 0

    def write(self, value: Any, key: str = "") -> None:
        out = self.out
        if isinstance(value, bool) or value is None:
            out += {True: b"\x88", False: b"\x89", None: b"N"}[value]
        elif isinstance(value, float):
            out += b"G" + struct.pack(">d", value)
        elif isinstance(value, int):
            if key.startswith("time_"):
                self.times.append(len(out) + 2)
            self._integer(value)
        elif isinstance(value, str):
            if not self._get(value):
                raw = value.encode()
                out += b"X" + struct.pack("<I", len(raw)) + raw
                self._put(value)
        elif isinstance(value, tuple):
            for each in value:
                self.write(each)
            out += b"\x86"
        elif isinstance(value, list):
            out += b"]("
            for each in value:
                self.write(each)
            out += b"e"
        else:
            self._dictionary(value)

    def _dictionary(self, value: Mapping[str, Any]) -> None:
        frame = _mark(value) if "filename" in value else None
        if frame is not None and self._get(frame):
            return
        self.out += b"}("
        for key, each in value.items():
            self.write(key)
            self.write(each, key)
        self.out += b"u"
        if frame is not None and self._uses[frame] > 1:
            self._put(frame)

    def _integer(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 1 << 16:
            self.out += b"M" + value.to_bytes(2, "little")
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += b"\x8a\x08" + struct.pack("<q", value)

    def _get(self, key: Any) -> bool:
        place = self._memo.get(key)
        if place is None:
            return False
        self.out += b"h" + bytes([place]) if place < 256 else b"j" + struct.pack("<I", place)
        return True

    def _put(self, key: Any) -> None:
        place = self._memo[key] = self._count
        self._count += 1
        self.out += b"q" + bytes([place]) if place < 256 else b"r" + struct.pack("<I", place)

    def finish(self) -> bytes:
        self._put(self)
        return bytes(self.out + b".")


def _mark(frame: Mapping[str, Any]) -> tuple[str, int, str]:
    return (frame["filename"], frame["line"], frame["name"])


def pickle_dump(dump: Mapping[str, Any]) -> bytes:
    """Return a dump as torch pickles it: texts and frames are written once, ints in the shortest form."""
    writer = _Writer(dump)
    writer.write(dict(dump))
    return writer.finish()


def make_frames(stack: Sequence[tuple[str, int, str]]) -> list[dict[str, Any]]:
    """Return a stack, innermost first, as entries hold it."""
    return [{"name": name, "filename": file, "line": line} for file, line, name in stack]


def make_entry(
    record: int,
    seq: int,
    op: str = "all_reduce",
    shape: Sequence[int] = (4,),
    line: int = 150,
    *,
    backend: str = "nccl",
    state: str = "completed",
    stack: Sequence[tuple[str, int, str]] = (),
    dtype: str = "Float",
    group: tuple[str, str] = ("0", "default_pg"),
) -> Entry:
    """Return one entry as torch 2.13 writes it."""
    call = (f"{SITE}/distributed/distributed_c10d.py", 3245, op)
    frames = stack or (call, WRAPPER, ("/job/train.py", line, "step"), *USER)
    created = STARTED_NS + record * 5_000_000
    over = state == "completed"
    return {
        "frames": make_frames(frames),
        "record_id": record,
        "pg_id": int(group[0]),
        "process_group": group,
        "thread_name": "python",
        "thread_id": "140038602292096",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"{backend}:{op}",
        "time_created_ns": created,
        "input_sizes": [list(shape)],
        "input_dtypes": [dtype],
        "output_sizes": [list(shape)],
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": created + 1_000_000 if state != "scheduled" else None,
        "time_discovered_completed_ns": created + 2_000_000 if over else None,
        "retired": over,
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": False,
    }


def make_dump(entries: Sequence[Entry], ranks: Sequence[int]) -> dict[str, Any]:
    """Return a whole dump of the default group."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}}
    return {
        "version": "2.10",
        "pg_config": config,
        "comm_lib_version": "2.27.3",
        "pg_status": {},
        "entries": list(entries),
    }


def make_steps(rows: int, *, drop_last: bool = False) -> list[Entry]:
    """Return the calls of a DDP training: per step five buckets of the reducer and one all_reduce of a loss.

    Args:
        rows: calls; the last one hangs.
        drop_last: the rank never makes the last one.
    """
    entries = []
    for n in range(rows - drop_last):
        state = "completed" if n < rows - 1 else "started"
        if n % 6 == 5:
            entries.append(make_entry(n, n + 1, shape=(1,), line=171, state=state))
        else:
            shape = (4_194_304 >> n % 6,)
            entries.append(make_entry(n, n + 1, shape=shape, state=state, stack=(*BACKWARD, *USER)))
    return entries


def write_dumps(folder: Path, ranks: int, rows: int, culprit: int, prefix: str = "nccl_trace_rank_") -> int:
    """Write the dumps of a job in which one rank never makes the last call; return the bytes of all."""
    members = range(ranks)
    dump = make_dump(make_steps(rows), members)
    writer = _Writer(dump)
    writer.write(dump)
    whole = bytearray(writer.finish())
    missing = pickle_dump(make_dump(make_steps(rows, drop_last=True), members))
    known = [struct.unpack_from("<q", whole, place)[0] for place in writer.times]
    total = 0
    written = max(known) + (TIMEOUT_MS + 5_000) * 1_000_000  # a time-out makes them
    for rank in members:
        for place, time in zip(writer.times, known, strict=True):
            struct.pack_into("<q", whole, place, time + rank * 7919)
        data = missing if rank == culprit else whole
        path = folder / f"{prefix}{rank}"
        path.write_bytes(data)
        os.utime(path, ns=(written, written))
        total += len(data)
    return total
