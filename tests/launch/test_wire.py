"""Evidence on its way out of a rank."""

from __future__ import annotations

import json
from pathlib import Path

from ddpdoctor.evidence import InitResult, RankSet, decode
from ddpdoctor.gather.log_tail import read_last_words
from ddpdoctor.launch.wire import EventReader, EventWriter, describe_error


def test_events_come_back_in_order_and_once(tmp_path: Path) -> None:
    writer, reader = EventWriter(tmp_path / "e"), EventReader(tmp_path / "e")
    writer.write("begin", stage="ddp")
    writer.emit("initialisations", InitResult("env", passed=RankSet([3])))
    first, second = reader.read()
    assert first["event"] == "begin"
    assert first["stage"] == "ddp"
    assert decode(InitResult, second["data"]) == InitResult("env", passed=RankSet([3]))
    assert reader.read() == []
    writer.write("end", stage="ddp")
    assert [event["event"] for event in reader.read()] == ["end"]


def test_a_line_that_is_half_written_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "e"
    line = json.dumps({"event": "bye", "t": 1.0}).encode()
    path.write_bytes(line[:7])
    reader = EventReader(path)
    assert reader.read() == []
    path.write_bytes(line + b"\n")
    assert [event["event"] for event in reader.read()] == ["bye"]


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b'\xff\xfe\n[1]\n{"event": "x"}\n{"event": "bye", "t": 1}\n')
    assert [event["event"] for event in EventReader(path).read()] == ["bye"]


def test_a_file_that_does_not_exist_has_no_events(tmp_path: Path) -> None:
    assert EventReader(tmp_path / "none").read() == []


def test_an_error_keeps_its_frames_innermost_first_and_a_bounded_text() -> None:
    def inner() -> None:
        raise ValueError("x" * 10_000)

    try:
        inner()
    except ValueError as problem:
        error = describe_error(2, "ddp", problem)
    assert error.type == "ValueError"
    assert error.frames[0].function == "inner"
    assert error.frames[0].file == __file__
    assert len(error.message) < 5_000


def test_last_words_are_the_end_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a" * 10_000 + "\nterminate called\n")
    words = read_last_words(path)
    assert words is not None
    assert words.endswith("terminate called")
    assert len(words) <= 4096
    assert read_last_words(tmp_path / "none") is None
