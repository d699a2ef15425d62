"""Reading rings of calls, and when a look at the ranks is due."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.facts.wire import COUNT_AT, HEADER, MAGIC
from ddpdoctor.watch.live.look import list_beside, open_call
from ddpdoctor.watch.live.pace import BLOCKED_S, QUIET_S, Glance, Pace, median_step
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.rings import HEAD, RECORD, Ring, Row, find_rings

SECOND = 10**9
MAIN = 77


def write_ring(folder: Path, rows: list[Row], *, capacity: int = 16, count: int | None = None) -> Path:
    data = bytearray(HEADER + capacity * RECORD.size)
    HEAD.pack_into(data, 0, MAGIC, capacity, RECORD.size, 12, 34, MAIN)
    data[COUNT_AT : COUNT_AT + 8] = (len(rows) if count is None else count).to_bytes(8, "little")
    for row in rows:
        place = HEADER + (row.number - 1) % capacity * RECORD.size
        RECORD.pack_into(data, place, *(getattr(row, name) for name in Row.__slots__))
    path = folder / "12-34.ring"
    path.write_bytes(data)
    path.with_suffix(".jsonl").touch()
    return path


def make_row(
    number: int, *, end: int = 1, thread: int = MAIN, flags: int = 0, begin: int | None = None
) -> Row:
    at = number * SECOND if begin is None else begin
    return Row(number, at, at + end if end else 0, number, 1, 1, 1, -1, 0, flags, thread)


def test_the_newest_records_come_in_order(tmp_path: Path) -> None:
    write_ring(tmp_path, [make_row(number) for number in range(1, 41)])
    (ring,) = find_rings(tmp_path, {})
    assert [row.number for row in ring.read_rows(5)] == [36, 37, 38, 39, 40]
    assert [row.number for row in ring.read_rows(1000)] == list(range(25, 41))
    assert ring.main_thread == MAIN


def test_a_record_that_is_being_overwritten_is_left_out(tmp_path: Path) -> None:
    write_ring(tmp_path, [make_row(number) for number in range(1, 4)], count=4)
    (ring,) = find_rings(tmp_path, {})
    assert [row.number for row in ring.read_rows(10)] == [1, 2, 3]


@pytest.mark.parametrize("data", [b"", b"DDPRING1", b"x" * 8192, MAGIC + b"\xff" * 8184])
def test_what_is_no_ring_is_empty(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "12-34.ring").write_bytes(data)
    (tmp_path / "12-34.jsonl").touch()
    (ring,) = find_rings(tmp_path, {})
    assert ring.read_rows(10) == []


@pytest.mark.parametrize(
    ("detail", "variables", "port"),
    [
        ({"init_method": None}, {"MASTER_PORT": "29501"}, 29501),
        ({"init_method": "env://"}, {"MASTER_PORT": "29501"}, 29501),
        ({"init_method": "tcp://10.0.0.1:1234"}, {"MASTER_PORT": "29501"}, 1234),
        ({"init_method": "tcp://10.0.0.1:none"}, {}, None),
        ({"init_method": "file:///tmp/meet"}, {"MASTER_PORT": "29501"}, None),
        ({"init_method": None, "store": "TCPStore"}, {"MASTER_PORT": "29501"}, None),
        ({"init_method": None}, {}, None),
    ],
)
def test_the_port_at_which_a_rank_looks_for_the_first(
    tmp_path: Path, detail: dict[str, str | None], variables: dict[str, str], port: int | None
) -> None:
    write_ring(tmp_path, [make_row(1)])
    begun = {"event": "milestone", "name": "init-begin", "detail": detail, "variables": variables}
    (tmp_path / "12-34.jsonl").write_text(json.dumps({"wall_ns": 1, "mono_ns": 1, **begun}) + "\n")
    (ring,) = find_rings(tmp_path, {})
    ring.read_tables(Shortener(tmp_path))
    assert ring.port == port


def test_numbers_get_their_meaning_from_the_journal(tmp_path: Path) -> None:
    write_ring(tmp_path, [make_row(1)])
    events = [
        {"event": "start", "role": "rank", "rank": 3, "attempt": 1, "host": "a"},
        {"event": "init", "rank": 3, "world_size": 4},
        {
            "event": "signature",
            "number": 1,
            "op": "all_reduce",
            "shape": [2],
            "dtype": "float32",
            "reduction": "sum",
        },
        {"event": "group", "number": 1, "name": "0", "ranks": [0, 3], "default": True},
        {"event": "site", "number": 1, "frames": [[str(tmp_path / "t.py"), 7, "f"]]},
        {"event": "site", "number": 2, "frames": "damaged"},
    ]
    lines = "\n".join(json.dumps({"wall_ns": 1, "mono_ns": 1, **event}) for event in events)
    (tmp_path / "12-34.jsonl").write_text(f"{lines}\nnot json\n" + '{"event": "torn')
    (ring,) = find_rings(tmp_path, {})
    ring.read_tables(Shortener(tmp_path))
    call = ring.describe(ring.read_rows(1)[0], 3 * SECOND)
    assert (ring.rank, ring.attempt, ring.world_size, ring.host) == (3, 1, 4, "a")
    assert (call.op, call.shape, call.dtype, call.reduction) == ("all_reduce", (2,), "float32", "sum")
    assert list(call.members) == [0, 3]
    assert call.age_s == pytest.approx(2.0)
    assert (call.frames[0].file, call.frames[0].line) == ("t.py", 7)


def test_numbers_without_a_meaning_are_shown_as_such(tmp_path: Path) -> None:
    write_ring(tmp_path, [make_row(1)])
    (ring,) = find_rings(tmp_path, {})
    assert ring.describe(ring.read_rows(1)[0], SECOND).op == "unknown"


def test_the_open_call_is_what_the_main_thread_began_last(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 1, 1, main_thread=MAIN)
    done, waiting, other = make_row(1), make_row(2, end=0), make_row(3, thread=5)
    assert open_call(ring, [done, waiting]) is waiting
    assert open_call(ring, [done, waiting, other]) is waiting
    assert open_call(ring, [waiting, make_row(3)]) is None
    assert open_call(ring, [other]) is None
    assert open_call(ring, [make_row(4, end=0, thread=5)]) is not None
    assert open_call(ring, []) is None


def test_a_main_thread_that_only_makes_groups_leaves_training_to_another(tmp_path: Path) -> None:
    """As in a worker of Ray, which joins its group in the main thread and trains beside it."""
    ring = Ring(tmp_path, 1, 1, main_thread=MAIN)
    made = replace(make_row(1), group=0)
    waiting = replace(make_row(2, end=0, thread=5), signature=2)
    assert open_call(ring, [made, waiting]) is None  # nothing says what the main thread called
    ring.signatures = {1: {"op": "init_process_group"}, 2: {"op": "all_reduce"}}
    ring.groups[1] = {"name": "0"}
    assert open_call(ring, [made, waiting]) is waiting
    assert list_beside(ring, [made, waiting]) == []
    called = replace(make_row(3), signature=2)
    assert open_call(ring, [made, called, waiting]) is None
    assert open_call(ring, [made, waiting]) is None  # it was seen to train


def test_calls_of_other_threads_are_those_beside_the_one_it_stands_in(tmp_path: Path) -> None:
    write_ring(tmp_path, [make_row(1)])
    (ring,) = find_rings(tmp_path, {})
    ring.read_count()
    main, other, over = make_row(2, end=0), make_row(3, end=0, thread=5), make_row(4, thread=6)
    assert list_beside(ring, [main, other, over]) == [other]
    assert list_beside(ring, [make_row(1), main]) == []
    assert list_beside(ring, [other]) == []  # the only thread that calls is the one it stands in
    assert list_beside(ring, []) == []


def test_what_the_name_of_a_group_means_is_told_by_the_call_that_created_it(tmp_path: Path) -> None:
    write_ring(tmp_path, [])
    (ring,) = find_rings(tmp_path, {})
    ring.signatures[1] = {"op": "new_group", "ranks": [0, 2]}
    named = replace(make_row(1), group=0, tag=4)
    assert (ring.describe(named, 0).made, ring.describe(replace(named, tag=0), 0).made) == ("3", None)
    assert ring.names_group(named)
    assert not ring.names_group(make_row(2))


def glance(
    rank: int,
    *,
    since: float | None = 0.0,
    call: str = "all_reduce #1",
    idle: bool = True,
    alive: bool = True,
) -> Glance:
    begun = int(since * SECOND) if since is not None else 0
    return Glance(rank, alive, idle, 1, begun, (call,) if since is not None else None, begun)


def first_look(glances: list[Glance], stall: float = 10.0, until: float = 60.0) -> float | None:
    """Return after how many seconds the first look is due."""
    pace = Pace()
    for tick in range(int(until * 2)):
        if pace.due(glances, tick * SECOND // 2, stall):
            return tick / 2
    return None


def test_ranks_that_all_wait_in_different_calls_are_looked_at_soon() -> None:
    due = first_look([glance(0), glance(1, call="barrier #1")])
    assert due is not None
    assert due <= BLOCKED_S + 0.5


def test_ranks_that_all_wait_in_the_same_call_are_given_time() -> None:
    assert first_look([glance(0), glance(1)]) == 10.0


def test_a_rank_that_has_left_is_looked_at_soon() -> None:
    due = first_look([glance(0), glance(1, since=None, alive=False)])
    assert due is not None
    assert due <= BLOCKED_S + 0.5


def test_an_idle_rank_outside_is_looked_at_soon_and_a_computing_one_is_not() -> None:
    due = first_look([glance(0), glance(1, since=None)])
    assert due is not None
    assert due <= QUIET_S + 0.5
    assert first_look([glance(0), glance(1, since=None, idle=False)]) == 10.0


def test_a_job_of_one_rank_and_one_that_has_ended_are_left_alone() -> None:
    assert first_look([glance(0)]) is None
    assert first_look([glance(0, alive=False), glance(1, alive=False)]) is None


def test_ranks_that_have_called_nothing_are_looked_at_once_none_computes() -> None:
    """They import for a minute, then all wait for a store: what counts is since when nothing computes."""
    pace = Pace()
    times = []
    for tick in range(200):
        early = tick < 120
        ranks = [replace(glance(rank, since=None, idle=not early), count=0) for rank in (0, 1)]
        if pace.due(ranks, tick * SECOND // 2, 10.0):
            times.append((tick / 2, pace.still_s))
    assert times[0] == (70.0, 10.0)
    one = [replace(glance(0, since=None), count=0), replace(glance(1, since=None, idle=False), count=0)]
    assert not any(Pace().due(one, tick * SECOND // 2, 10.0) for tick in range(200))


def test_looks_become_rarer_while_nothing_changes() -> None:
    pace, ranks = Pace(), [glance(0), glance(1, since=None)]
    times = [tick / 2 for tick in range(400) if pace.due(ranks, tick * SECOND // 2, 10.0)]
    assert len(times) <= 9
    later = [at for at in times if at >= 10.0]
    assert all(after >= 1.9 * before for before, after in itertools.pairwise(later))


def test_a_job_that_goes_on_after_looks_is_looked_at_less() -> None:
    """Steps of four seconds in which the processor is idle: a few looks in fifty steps."""
    pace, looks = Pace(), 0
    for step in range(50):
        at = step * 4 * SECOND
        ranks = [
            Glance(rank, True, True, step, at, ("all_reduce", step) if rank else None, at) for rank in (0, 1)
        ]
        looks += sum(pace.due(ranks, at + tick * SECOND // 2, 10.0) for tick in range(8))
    assert looks <= 5


def test_the_length_of_a_step_is_that_of_the_place_that_calls_most_often() -> None:
    rows = [make_row(number, begin=number * 2 * SECOND) for number in range(1, 10)]
    assert median_step(rows) == pytest.approx(2.0)
    assert median_step(rows[:2]) == 0.0
    assert median_step([]) == 0.0


def test_neither_the_suspicion_nor_the_confirmation_is_passed_by() -> None:
    pace, ranks = Pace(), [glance(0), glance(1, since=None)]
    times = [tick / 2 for tick in range(200) if pace.due(ranks, tick * SECOND // 2, 10.0, 37.0)]
    assert {10.0, 37.0} <= set(times)
