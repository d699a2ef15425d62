"""Run directories that somebody has damaged or made up: what is whole is read, the rest is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.cli import main
from ddpdoctor.evidence import Evidence, Launch, RankSet
from ddpdoctor.evidence.codec import encode
from ddpdoctor.evidence.job import JobEnd, Moment
from ddpdoctor.evidence.standstill import Call, Stand, Standstill
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.live.stillness import Exchange
from ddpdoctor.watch.readers.collect import collect_run
from ddpdoctor.watch.readers.events import read_events
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.rings import Row, find_rings

DEEP = b'{"event":"init","wall_ns":1,"rank":' + b"[" * 100_000
PLACES = ("processes/8-1.jsonl", "processes/7-1.fault", "logs/rank-0.0.7.stderr.log", "snapshots/0001.json")


def line(name: str, /, **values: Any) -> bytes:
    return json.dumps({"event": name, "wall_ns": 10**18, "mono_ns": 5, **values}).encode() + b"\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in ("processes", "logs", "snapshots"):
        (tmp_path / "run" / name).mkdir(parents=True)
    start = line("start", pid=7, ppid=1, rank=0, world_size=2, role="rank", host="node-a")
    (tmp_path / "run" / "processes" / "7-1.jsonl").write_bytes(start)
    return tmp_path / "run"


def add(run: Path, data: bytes) -> None:
    with (run / "processes" / "7-1.jsonl").open("ab") as file:
        file.write(data)


def read(data: bytes) -> Any:
    (event,) = read_events(data)
    return event


@pytest.mark.parametrize(
    "data", [DEEP, b"[1]", b'{"event":1}', b'{"wall_ns":NaN,"event":"x"}', b"\xff", b"{"]
)
def test_what_is_no_event_is_passed_over(data: bytes) -> None:
    assert list(read_events(data + b"\n")) == []


@pytest.mark.parametrize("number", [b"1e999", b"-Infinity", b"NaN", b"9" * 5000])
def test_numbers_that_are_none_spoil_their_event_only(number: bytes) -> None:
    good = line("init", rank=1)
    events: Any = read_events(b'{"event":"init","rank":' + number + b"}\n" + good)
    assert [each["rank"] for each in events] == [1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank", "1"), ("rank", True), ("rank", 10**12), ("world_size", 1.5), ("attempt", []), ("pid", -4),
        ("wall_ns", 10**30), ("ranks", [0, "1"]), ("ranks", [10**9]), ("frames", "x"), ("variables", [1]),
        ("code", "0"), ("chain", {"a": 1}), ("number", 1 << 70),
    ],
)  # fmt: skip
def test_values_that_the_hook_cannot_have_written_are_left_out(key: str, value: object) -> None:
    assert key not in read(line("init", **{key: value}))
    assert key not in read(line("x", exception={key: value}))["exception"]


def test_texts_can_be_written_out(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(read(line("x", text="a\ud800b", list=["\udfff"]))["text"])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "dangling link"])
def test_no_place_of_a_run_holds_the_reader_up(run: Path, place: str, kind: str) -> None:
    path = run / place
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    found = collect_run(run)
    assert [(each.pid, each.rank) for each in found.processes] == [(7, 0)]
    if not place.endswith(".fault"):
        assert any(path.name in text for text in found.lost)


@pytest.mark.parametrize("name", ["pipe", "device"])
def test_only_ordinary_files_are_opened(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / name)


def test_a_damaged_event_costs_nothing_but_itself(run: Path) -> None:
    add(
        run,
        line("role")
        + line("kill", pid="x")
        + line("child-exit")
        + line("init", rank=1, world_size=2, backend=5),
    )
    add(run, line("milestone", name="wrap", detail="Net") + line("end"))
    found = collect_run(run)
    (record,) = found.processes
    assert (record.rank, record.backend, record.clean_end) == (1, None, True)
    assert [each.name for each in record.milestones] == ["start", "wrap", "end"]
    assert any("3 events of 7-1.jsonl are damaged" in text for text in found.lost)
    assert any("7-1.jsonl is damaged: backend" in text for text in found.lost)


def test_what_is_kept_can_be_read_back(run: Path) -> None:
    add(
        run,
        line(
            "exception", type=["KeyError"], message="x", thread={"a": 1}, worker="0", frames=[["a", 1, "f"]]
        ),
    )
    add(
        run,
        line(
            "ddp",
            wrapper="Net",
            parameters=[{"index": 0, "forward_ran": "yes", "requires_grad": 1}],
            forwards=[],
        ),
    )
    found = collect_run(run)
    evidence = Evidence(
        launch=Launch("analyze"),
        processes=tuple(found.processes),
        exceptions=tuple(found.exceptions),
        wrappers=tuple(found.wrappers),
        job=(JobEnd(exit_code=None, lost=tuple(found.lost)),),
    )
    assert len(evidence.exceptions) == len(evidence.wrappers) == 1
    assert Evidence.from_dict(json.loads(json.dumps(evidence.to_dict()))) == evidence


def test_an_end_that_is_no_number_is_unknown(run: Path) -> None:
    (run / "processes" / "5-1.jsonl").write_bytes(
        line("start", pid=5, role="launcher") + line("child-exit", pid=7, code="none", signal=[9])
    )
    (rank,) = [each for each in collect_run(run).processes if each.pid == 7]
    assert (rank.exit_code, rank.signal) == (None, None)


@pytest.mark.parametrize("name", ["²-1", "7", "a-b", f"{10**12}-1"])
def test_files_that_are_named_as_no_process_is(run: Path, name: str) -> None:
    for ending in ("fault", "jsonl"):
        (run / "processes" / f"{name}.{ending}").write_text("Fatal Python error: Aborted\n")
    found = collect_run(run)
    assert [each.pid for each in found.processes] == [7]
    assert [ring.pid for ring in find_rings(run / "processes", {})] == [7]


@pytest.mark.parametrize("rank", [-2, 10**9])
def test_a_look_with_ranks_that_no_job_has_is_refused(run: Path, rank: int) -> None:
    look = Standstill(Moment(10**18, 5), 1.0, 1.0, (Stand(rank, 7),), 2)
    (run / "snapshots" / "0001.json").write_text(json.dumps(encode(look)))
    found = collect_run(run)
    assert not found.standstills
    assert any(text.startswith("0001.json could not be read") for text in found.lost)


def test_a_ring_survives_what_its_own_process_writes_into_its_journal(run: Path) -> None:
    events = [
        DEEP, line("milestone", name="init-begin", detail=[1], variables=3), line("init", rank="x", world_size="y"),
        line("milestone", name="init-begin", detail="text"), line("signature", number=1, op=5, shape=["a"], index={}),
        line("group", number=[1]), line("site", number=2, frames=[[None]]), line("loader", frames=[["a", "b", "c"]]),
    ]  # fmt: skip
    add(run, b"\n".join(events) + b"\n")
    (ring,) = find_rings(run / "processes", {})
    ring.read_tables(Shortener(run))
    assert (ring.rank, ring.world_size) == (0, None)
    call = ring.describe(Row(1, 1, 0, 1, 1, 2, 1, -1, 0, 0, 1), 5)
    assert (call.op, call.shape, call.frames) == ("unknown", None, ())
    add(run, line("init", rank=1, world_size=2))
    ring.read_tables(Shortener(run))
    assert (ring.rank, ring.world_size) == (1, 2)


def test_what_other_nodes_tell_is_a_file_or_nothing(run: Path) -> None:
    (run / "nodes").mkdir()
    (run / "nodes" / "stop").symlink_to("/dev/zero")
    os.mkfifo(run / "nodes" / "still-1")
    (run / "nodes" / "still-²").write_bytes(b"x")
    exchange = Exchange(run)
    assert exchange.read_stop() is None
    assert exchange.join(Standstill(Moment(1, 1), 1.0, 1.0, (Stand(0, 7),), 2)) is None


def test_no_line_of_a_file_that_is_no_program_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n")
    (tmp_path / "words").write_text("hunter2\n")
    (tmp_path / "train").write_text("x = 1\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "words")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "device.py").symlink_to("/dev/zero")
    names = ("key", "words", "train", "link.py", "pipe.py", "device.py")
    frames = Shortener(tmp_path).frames([[str(tmp_path / name), 1, "f"] for name in names])
    assert [frame.source for frame in frames] == [None, None, "x = 1", None, None, None]


def test_a_run_whose_supervisor_was_killed_is_judged_by_its_looks(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no report, and what stands in its place does not hold the reader up."""
    os.mkfifo(run / "report.json")
    (run / "processes" / "8-1.jsonl").write_bytes(
        line("start", pid=8, rank=1, world_size=2, role="rank", host="node-a")
    )
    members = RankSet([0, 1])
    waits = Call("all_reduce", members=members, ordinal=3, default_group=True, age_s=9.0)
    stands = (
        Stand(0, 7, call=waits, recent=(waits,), still_s=9.0),
        Stand(1, 8, alive=False, exit_code=0, ended=True),
    )
    look = Standstill(Moment(10**18, 5), 30.0, 9.0, stands, 2)
    (run / "snapshots" / "0001.json").write_text(json.dumps(encode(look)))
    assert main(["analyze", str(run), "--json", "-", "-q"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"]["code"].startswith("COL")
    assert report["evidence"]["standstills"]
    assert any("no report" in text for text in report["evidence"]["job"][0]["lost"])
