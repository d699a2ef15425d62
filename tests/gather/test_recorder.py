"""Flight Recorder dumps: torch's own (gloo, three ranks, torch 2.13.0), made-up ones byte for byte alike, hostile ones."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import pytest

from benchmarks.dumps import Entry, make_dump, make_entry, make_steps, pickle_dump, write_dumps
from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.collectives import RETIRED, SCHEDULED, CallLog, CallTable, RankCalls
from ddpdoctor.gather.recorder import lanes, pickles, read_dumps
from ddpdoctor.gather.recorder.pickles import NotPlain, read_pickle
from ddpdoctor.gather.recorder.read import read_rank
from ddpdoctor.gather.recorder.rows import Rows

RECORDED = Path(__file__).parent / "recorder"


def read(folder: Path, lost: list[str] | None = None, processes: int | None = None) -> CallLog:
    files = [(path, path.name) for path in sorted(folder.iterdir())]
    log = read_dumps(files, [] if lost is None else lost, processes=processes)
    assert log is not None
    return log


def read_one(data: bytes) -> tuple[CallLog, RankCalls]:
    table = CallTable()
    rows = Rows(table)
    read_pickle(data, rows)
    log = table.log([rows.finish(0)])
    return log, log.ranks[0]


def ops(log: CallLog, rank: RankCalls) -> list[tuple[int, str]]:
    return [(seq, log.calls[n].op) for n, seq in zip(rank.calls, rank.sequences, strict=True)]


def test_a_real_dump_has_calls_call_sites_sequence_numbers_and_states() -> None:
    log = read(RECORDED / "missing")
    assert [(rank.rank, len(rank.calls), rank.file) for rank in log.ranks] == [
        (0, 7, "rank_0"), (1, 6, "rank_1"), (2, 7, "rank_2"),
    ]  # fmt: skip
    rank = log.ranks[0]
    assert ops(log, rank)[-2:] == [(6, "barrier"), (7, "all_reduce")]
    call = log.calls[rank.calls[6]]
    assert (call.inputs, call.input_types, call.p2p, call.root) == (((4,),), ("float32",), False, None)
    frames = [(frame.file, frame.line, frame.function) for frame in log.frames_of(call)]
    assert frames[-3:] == [
        ("/job/train.py", 36, "finish"),
        ("/job/train.py", 48, "main"),
        ("/job/train.py", 58, "<module>"),
    ]
    assert list(rank.states) == [SCHEDULED + RETIRED] * 6 + [SCHEDULED]
    assert list(rank.begun_ns) == sorted(rank.begun_ns)
    assert rank.begun_ns[0] > 1_700_000_000_000_000_000
    assert log.groups[0].description == "default_pg"


def test_the_json_form_says_the_same_without_call_sites() -> None:
    pickled, plain = read(RECORDED / "missing"), read(RECORDED / "missing.json")
    for one, other in zip(pickled.ranks, plain.ranks, strict=True):
        assert ops(pickled, one) == ops(plain, other)
        assert one.begun_ns == other.begun_ns
    assert {call.stack for call in plain.calls} == {-1}


def test_what_the_tests_make_up_is_byte_for_byte_what_torch_writes() -> None:
    for path in sorted((RECORDED / "missing").iterdir()):
        data = path.read_bytes()
        assert pickle_dump(pickle.loads(data)) == data  # noqa: S301  # a file of this repository


def test_entries_taken_in_one_step_are_those_read_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [*make_steps(700), *[make_entry(700 + n, 70_000 + n, "broadcast", (n % 3,)) for n in range(40)]]
    data = pickle_dump(make_dump(entries, [0, 1]))
    quick = read_one(data)
    monkeypatch.setattr(lanes.Lane, "run", lambda lane, data, position, rows, memo: position)
    assert read_one(data) == quick
    assert list(quick[1].sequences) == [entry["collective_seq_id"] for entry in entries]
    assert list(quick[1].begun_ns) == [entry["time_created_ns"] for entry in entries]


def test_most_entries_of_a_training_are_taken_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle_dump(make_dump(make_steps(2000), [0, 1]))
    monkeypatch.setattr(pickles, "MOST_STEPS", 3000)
    assert len(read_one(data)[1].calls) == 2000


def test_entries_with_and_without_a_duration_are_both_taken_in_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = []
    for n, entry in enumerate(make_steps(1200)):
        timed = {}
        for key, value in entry.items():
            timed[key] = value
            if key == "profiling_name" and n % 400 > 2:
                timed["duration_ms"] = 1.5 + n
        entries.append(timed)
    data = pickle_dump(make_dump(entries, [0, 1]))
    monkeypatch.setattr(pickles, "MOST_STEPS", 6000)
    assert list(read_one(data)[1].sequences) == list(range(1, 1201))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_dumps_that_python_pickled_again_are_read(protocol: int) -> None:
    dump = make_dump(make_steps(50), [0, 1])
    assert read_one(pickle.dumps(dump, protocol)) == read_one(pickle_dump(dump))


def test_groups_have_their_members_and_peers_are_global_ranks() -> None:
    entry = {
        **make_entry(0, 0, group=("3", "pairs")),
        "profiling_name": "nccl:send 0->1",
        "is_p2p": True,
        "p2p_seq_id": 9,
    }
    dump = make_dump([entry], [0])
    dump["pg_config"] = {"3": {"name": "3", "desc": "pairs", "ranks": "[4, 6]"}}
    log, rank = read_one(pickle_dump(dump))
    call = log.calls[rank.calls[0]]
    assert (call.op, call.peer, call.p2p, rank.sequences[0]) == ("send", 6, True, 9)
    assert log.groups[call.group].ranks == RankSet([4, 6])


def test_sends_have_numbers_of_their_own_among_collectives() -> None:
    entries = []
    for n in range(300):
        if n % 3:
            entries.append(make_entry(n, n, shape=(8,)))
        else:
            entries.append(
                {
                    **make_entry(n, n),
                    "profiling_name": "nccl:recv 0<-1",
                    "is_p2p": True,
                    "p2p_seq_id": 1000 + n,
                }
            )
    log, rank = read_one(pickle_dump(make_dump(entries, [0, 1])))
    assert [log.calls[n].op for n in rank.calls][:4] == ["recv", "all_reduce", "all_reduce", "recv"]
    assert list(rank.sequences) == [n if n % 3 else 1000 + n for n in range(300)]


def test_operations_are_spelled_as_in_torch_distributed() -> None:
    entries = [
        make_entry(n, n, name) for n, name in enumerate(("_all_gather_base", "_reduce_scatter_base", "x_new"))
    ]
    log, rank = read_one(pickle_dump(make_dump(entries, [0])))
    assert [log.calls[n].op for n in rank.calls] == [
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "x_new",
    ]


def test_many_dumps_read_by_several_processes_are_those_read_by_one(tmp_path: Path) -> None:
    write_dumps(tmp_path, 40, 60, culprit=3)
    assert read(tmp_path, processes=2) == read(tmp_path, processes=1)


def test_memory_is_some_forty_bytes_an_entry(tmp_path: Path) -> None:
    write_dumps(tmp_path, 32, 2000, culprit=3)
    tracemalloc.start()
    try:
        log = read(tmp_path, processes=1)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(log.ranks) == 32
    assert kept < 32 * 2000 * 60


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("comm_lib_trace_rank_3", 3),
        ("my.prefix-7.json", 7),
        ("rank3_attempt2.pickle.gz", 3),
        ("trace", None),
        ("trace_20260102", None),
        ("rank_99999999999", None),
    ],
)
def test_the_rank_is_told_by_the_name(tmp_path: Path, name: str, rank: int | None) -> None:
    assert read_rank(tmp_path / "dumps" / name) == rank


def test_a_folder_for_each_rank_tells_it_too(tmp_path: Path) -> None:
    assert read_rank(tmp_path / "rank-5" / "trace") == 5


def test_of_two_dumps_of_a_rank_the_one_with_call_sites_is_used(tmp_path: Path) -> None:
    (tmp_path / "rank_0.json").write_bytes((RECORDED / "missing.json" / "rank_0.json").read_bytes())
    (tmp_path / "rank_0").write_bytes((RECORDED / "missing" / "rank_0").read_bytes())
    lost: list[str] = []
    assert read(tmp_path, lost).ranks[0].file == "rank_0"
    assert lost == ["there are several dumps of rank 0: rank_0 is used and not rank_0.json"]


def test_a_compressed_dump_is_read(tmp_path: Path) -> None:
    (tmp_path / "rank_0.gz").write_bytes(gzip.compress((RECORDED / "missing" / "rank_0").read_bytes()))
    assert len(read(tmp_path).ranks[0].calls) == 7


def test_a_dump_that_is_cut_off_costs_only_itself(tmp_path: Path) -> None:
    whole = (RECORDED / "missing" / "rank_0").read_bytes()
    (tmp_path / "rank_0").write_bytes(whole)
    for rank, size in enumerate(range(0, len(whole), 97), 1):
        (tmp_path / f"rank_{rank}").write_bytes(whole[:size])
    lost: list[str] = []
    assert [rank.rank for rank in read(tmp_path, lost).ranks] == [0]
    assert len(lost) == rank
    assert all(
        "truncated" in sentence or "damaged" in sentence or "empty" in sentence for sentence in lost[:-1]
    )


@pytest.mark.unmeasured
def test_damaged_bytes_never_stop_the_others() -> None:
    whole = bytearray((RECORDED / "missing" / "rank_0").read_bytes())
    for place in range(0, len(whole), 3):
        for value in (0, 0x52, 0x71, 0xFF):
            changed = bytearray(whole)
            changed[place] = value
            try:
                read_one(bytes(changed))
            except NotPlain:
                continue


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    bait = tmp_path / "bait"
    data = pickle.dumps({**make_dump([], [0]), "entries": [Evil(bait)]}, protocol)
    with pytest.raises(NotPlain):
        read_one(data)
    assert not bait.exists()
    pickle.loads(data)  # noqa: S301  # to show that the bait works on who unpickles it
    assert bait.exists(), "the bait is none"


def peak_of(data: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(NotPlain):
            read_one(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02K\x01r\xff\xff\xff\x7f0.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
        b"\x80\x02X" + struct.pack("<I", 0xFFFFFFF0) + b"a.",
        b"\x80\x02\x8b" + struct.pack("<I", 0x7FFFFFFF) + b"a.",
        b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",
    ],
    ids=["memo", "bytearray", "text", "long", "number"],
)
def test_numbers_in_a_pickle_take_no_memory(data: bytes) -> None:
    assert peak_of(data) < 1 << 20


@pytest.mark.parametrize("code", [b"]", b"}", b"(", b"]q\x00h\x00h\x00"])
def test_a_pickle_of_many_objects_is_given_up(code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MOST_STEPS", 100_000)
    assert peak_of(b"\x80\x02" + code * 200_000 + b".") < 32 << 20


def test_lists_that_double_in_each_step_are_not_followed() -> None:
    doubled = b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(60))
    entry: Entry = make_entry(0, 1)
    data = bytearray(pickle_dump(make_dump([entry], [0])))
    data[2:2] = b"]q\x00" + doubled  # lies on the stack below the dump
    log, rank = read_one(bytes(data))
    assert len(rank.calls) == len(log.calls) == 1


def test_json_of_another_kind_or_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_text("[" * 100_000)
    (tmp_path / "rank_1").write_text('{"entries": 3}')
    (tmp_path / "rank_2").write_text(
        json.dumps({"entries": [{"profiling_name": []}, 7, {}], "pg_config": []})
    )
    lost: list[str] = []
    assert read(tmp_path, lost).ranks[0].calls.to_bytes() == b""
    assert "rank_0" in lost[0]
    assert lost[1] == "rank_1 is not a Flight Recorder dump"
    assert lost[2] == "rank_2: 3 entries could not be parsed"


def test_values_of_other_types_are_left_out(tmp_path: Path) -> None:
    odd = {**make_entry(0, 1), "input_sizes": [["x", 2**70, -1], 3], "input_dtypes": [3], "frames": [], "state": 7,
           "time_created_ns": None, "retired": "yes"}  # fmt: skip
    (tmp_path / "rank_0").write_text(
        json.dumps({"entries": [odd], "pg_config": {"0": {"ranks": "[1, true, -4]"}}})
    )
    log = read(tmp_path)
    call = log.calls[log.ranks[0].calls[0]]
    assert (call.inputs, call.input_types, call.stack) == (((0, 0, -1),), (), -1)
    assert log.groups[call.group].ranks == RankSet([1])


def test_a_member_of_a_group_that_does_not_tell_it_is_in_the_group_of_the_others(tmp_path: Path) -> None:
    dump = make_dump([make_entry(0, 1)], [0, 1])
    (tmp_path / "rank_0").write_bytes(pickle_dump(dump))
    (tmp_path / "rank_1").write_bytes(pickle_dump({**dump, "pg_config": {"": {"ranks": "[]"}}}))
    log = read(tmp_path)
    assert log.ranks[0].calls == log.ranks[1].calls
    assert log.world == 2
