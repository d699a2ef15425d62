"""What the live view knows of each rank: read from its ring of calls and its journal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from ddpdoctor.facts.wire import COUNT_AT, FORWARD, HEADER, MAGIC, OTHER, POINT_TO_POINT, RAISED
from ddpdoctor.text.paper import Paper
from ddpdoctor.watch.readers.rings import HEAD, RECORD, Row
from ddpdoctor.watch.view.rank_progress import (
    BETWEEN,
    GONE,
    IN_CALL,
    INSIDE,
    STARTING,
    Progress,
    ProgressReader,
    RankProgress,
)
from ddpdoctor.watch.view.table import describe_phase, make_lines

SECOND = 10**9
MAIN = 77
ALL_REDUCE, BARRIER, SEND, PASS = 1, 2, 3, 4
"""Signatures of the rings below."""


def own_start() -> int:
    text = Path("/proc/self/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[19])


def make_ring(
    folder: Path, rank: int, rows: list[Row], *, pid: int | None = None, capacity: int = 64
) -> None:
    """A ring and a journal as a rank writes them; of this process unless told otherwise."""
    pid, ticks = pid or os.getpid(), own_start()
    stem = folder / f"{pid}-{ticks}"
    data = bytearray(HEADER + capacity * RECORD.size)
    HEAD.pack_into(data, 0, MAGIC, capacity, RECORD.size, pid, ticks, MAIN)
    data[COUNT_AT : COUNT_AT + 8] = (rows[-1].number if rows else 0).to_bytes(8, "little")
    for row in rows:
        RECORD.pack_into(
            data,
            HEADER + (row.number - 1) % capacity * RECORD.size,
            *(getattr(row, name) for name in Row.__slots__),
        )
    stem.with_suffix(".ring").write_bytes(data)
    events = [
        {"event": "start", "role": "rank", "rank": rank, "attempt": 0, "host": "a"},
        {"event": "init", "rank": rank, "world_size": 4, "backend": "gloo"},
        {"event": "signature", "number": ALL_REDUCE, "op": "all_reduce", "shape": [2]},
        {"event": "signature", "number": BARRIER, "op": "barrier"},
        {"event": "signature", "number": SEND, "op": "send"},
        {"event": "signature", "number": PASS, "op": FORWARD, "index": 1},
        {"event": "group", "number": 1, "name": "0", "ranks": [0, 1], "default": True},
        {"event": "group", "number": 2, "name": "1", "ranks": [0, 1], "default": False},
        {"event": "site", "number": 1, "frames": [["/job/train.py", 88, "train"]]},
        {"event": "site", "number": 2, "frames": [["/job/train.py", 31, "step"]]},
    ]
    lines = [json.dumps({"wall_ns": 1, "mono_ns": 1, **event}) for event in events]
    stem.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")


def call(
    number: int,
    signature: int = ALL_REDUCE,
    *,
    ordinal: int | None = None,
    end: bool = True,
    site: int = 1,
    group: int = 1,
    peer: int = -1,
    flags: int = 0,
) -> Row:
    begin = time.monotonic_ns() - 20 * SECOND + number
    end_ns = begin + 1 if end else 0
    group = 0 if flags & OTHER else group
    return Row(number, begin, end_ns, ordinal or number, signature, site, group, peer, 0, flags, MAIN)


def read_one(folder: Path, rows: list[Row], **options: int) -> RankProgress:
    make_ring(folder, 3, rows, **options)
    seen = ProgressReader(folder, folder, {os.getpid(): 5_000_000}).read()
    assert (seen.world_size, seen.backend) == (4, "gloo")
    (one,) = seen.ranks
    return one


def test_a_rank_in_a_collective(tmp_path: Path) -> None:
    one = read_one(tmp_path, [call(1, BARRIER), call(2), call(3, end=False)])
    assert (one.rank, one.phase, one.op, one.place, one.open) == (
        3,
        IN_CALL,
        "all_reduce",
        "train.py:88",
        True,
    )
    assert (one.last, one.last_number, one.last_place) == ("all_reduce", 3, "train.py:88")
    assert (one.step, one.forwards, one.calls, one.memory) == (3, False, 3, 5_000_000)
    assert one.since_s >= 20
    assert describe_phase(one)[0] == "in all_reduce 20 s"


def test_steps_are_forwards_where_there_are_any(tmp_path: Path) -> None:
    rows = [call(1, BARRIER), call(2, PASS, ordinal=41, site=2, flags=OTHER), call(3, ordinal=2)]
    one = read_one(tmp_path, rows)
    assert (one.step, one.forwards, one.exact) == (41, True, True)
    assert (one.phase, one.op, one.calls) == (BETWEEN, "all_reduce", 2)
    assert describe_phase(one)[0] == "outside 20 s"


def test_a_rank_after_a_forward_and_in_one(tmp_path: Path) -> None:
    rows = [call(1), call(2, PASS, ordinal=7, site=2, flags=OTHER)]
    one = read_one(tmp_path, rows)
    assert (one.phase, one.op, one.last) == (BETWEEN, FORWARD, "all_reduce")
    assert describe_phase(one) == ["after forward pass 20 s · train.py:31", "after forward pass 20 s"]
    rows[1] = replace(rows[1], end_ns=0)
    one = read_one(tmp_path, rows)
    assert one.phase == INSIDE
    assert describe_phase(one)[0] == "forward 20 s · train.py:31"


def test_sends_are_told_with_the_other_side_and_are_no_collectives(tmp_path: Path) -> None:
    one = read_one(tmp_path, [call(1), call(2, SEND, end=False, peer=6, site=2, flags=POINT_TO_POINT)])
    assert (one.last_number, one.calls, one.open) == (1, 1, False)
    assert describe_phase(one)[0] == "in send to 6 20 s · train.py:31"


def test_calls_of_other_groups_are_shown_but_not_compared(tmp_path: Path) -> None:
    one = read_one(tmp_path, [call(1), call(2, ordinal=70, group=2)])
    assert (one.last_number, one.calls) == (70, 1)


def test_a_call_that_has_raised_is_said(tmp_path: Path) -> None:
    one = read_one(tmp_path, [call(1), call(2, flags=RAISED)])
    assert describe_phase(one)[0] == "all_reduce has raised 20 s"


def test_calls_are_counted_on_from_look_to_look(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path, tmp_path, {})
    for newest, expected, exact in ((10, 10, True), (60, 60, True), (200, 124, False)):
        first = max(1, newest - 63)
        make_ring(tmp_path, 0, [call(number) for number in range(first, newest + 1)])
        (one,) = reader.read().ranks
        assert (one.step, one.exact) == (expected, exact)
    assert make_lines(Progress((one,)), Paper(), 12)[-1].split()[1] == "~124"


def test_where_the_time_of_its_newest_steps_went(tmp_path: Path) -> None:
    make_ring(tmp_path, 3, [call(1)])
    (journal,) = tmp_path.glob("*.jsonl")
    # First step, steps, reductions, microseconds by phase, and what else a column has.
    columns = [
        [1, 50, 50, *[9] * 7, 1, 0],
        [51, 8, 8, 0, 800, 0, 0, 1600, 0, 0, 51, 0],
        [59, 2, 2, 0, 200, *[0] * 5, 59, 0],
    ]
    times = {"wall_ns": 1, "mono_ns": 1, "event": "times", "columns": columns}
    damaged = {**times, "columns": [["x", 1]]}
    journal.write_text(journal.read_text() + json.dumps(times) + "\n" + json.dumps(damaged) + "\n")
    (one,) = ProgressReader(tmp_path, tmp_path, {}).read().ranks
    assert one.spent == (0.0, 100e-6, 0.0, 0.0, 160e-6, 0.0, 0.0)


def test_the_programs_own_name_for_what_it_does(tmp_path: Path) -> None:
    make_ring(tmp_path, 3, [call(1)])
    (journal,) = tmp_path.glob("*.jsonl")
    marks = [{"event": "milestone", "name": "phase", "detail": each} for each in ("warm-up", "evaluation")]
    reader = ProgressReader(tmp_path, tmp_path, {})
    written = journal.read_text()
    for mark in marks:
        written += json.dumps({"wall_ns": 1, "mono_ns": 1, **mark}) + "\n"
        journal.write_text(written)
        assert [each.named for each in reader.read().ranks] == [mark["detail"]]
    journal.write_text(written + json.dumps({"wall_ns": 1, "mono_ns": 1, **marks[0], "detail": None}) + "\n")
    assert [each.named for each in reader.read().ranks] == [None]


def test_a_rank_that_has_called_nothing_and_one_that_is_gone(tmp_path: Path) -> None:
    one = read_one(tmp_path, [])
    assert (one.phase, one.step, one.last) == (STARTING, None, None)
    assert describe_phase(one)[0].startswith("starting")
    for path in tmp_path.iterdir():
        path.unlink()
    one = read_one(tmp_path, [call(1)], pid=2**22 + 5)
    assert (one.phase, one.memory) == (GONE, None)
    assert describe_phase(one)[0] == "its process is gone"


def test_how_far_a_rank_is_behind_the_first(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        make_ring(tmp_path, 0, [call(number) for number in range(1, 9)])
        make_ring(tmp_path, 1, [call(number) for number in range(1, 6)])
        other = next(path for path in tmp_path.glob("*.ring"))
        text = Path(f"/proc/{process.pid}/stat").read_text()
        ticks = text[text.rindex(")") + 2 :].split()[19]
        for path in (other, other.with_suffix(".jsonl")):
            path.rename(tmp_path / f"{process.pid}-{ticks}{path.suffix}")
        make_ring(tmp_path, 0, [call(number) for number in range(1, 9)])
        seen = ProgressReader(tmp_path, tmp_path, {}).read()
        assert [(one.rank, one.behind) for one in seen.ranks] == [(0, 0), (1, 3)]
    finally:
        process.kill()
        process.communicate()
