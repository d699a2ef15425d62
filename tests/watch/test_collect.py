"""From what processes wrote down to evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Frame
from ddpdoctor.watch.collect import Collected, collect_run

FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f2 (most recent call first):
  File "{cwd}/data/native.py", line 12 in crunch
  File "{cwd}/train.py", line 40 in main

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in ("processes", "logs"):
        (tmp_path / "run" / name).mkdir(parents=True)
    return tmp_path / "run"


def event(name: str, second: int, /, **values: Any) -> str:
    return json.dumps({"event": name, "wall_ns": second * 10**9, "mono_ns": second * 10**9, **values})


def write(run: Path, pid: int, *lines: str) -> None:
    (run / "processes" / f"{pid}-1.jsonl").write_text("\n".join(lines) + "\n")


def start(pid: int, rank: int | None, role: str = "rank", **more: Any) -> str:
    values = {"pid": pid, "ppid": 1, "rank": rank, "role": role, "host": "node-a", "world_size": 2, **more}
    return event("start", 1, **values)


def collect(run: Path) -> Collected:
    return collect_run(run, cwd=run.parent)


def test_a_rank_is_described_by_its_events(run: Path) -> None:
    write(
        run,
        7,
        start(7, 1, argv=["python", "train.py", "--token=hf_abcdefghijklmnopqrstuvwxyz0123456789"]),
        event("torch", 2, version="2.13.0"),
        event("init", 3, rank=1, world_size=2, backend="gloo"),
        event("milestone", 3, name="init"),
        event("end", 9),
    )
    (record,) = collect(run).processes
    assert (record.pid, record.rank, record.role, record.backend, record.torch) == (
        7,
        1,
        "rank",
        "gloo",
        "2.13.0",
    )
    assert record.clean_end
    assert [each.name for each in record.milestones] == ["start", "init"]
    assert "abcdefghijklm" not in " ".join(record.command)


def test_an_exit_is_known_from_the_parent(run: Path) -> None:
    write(
        run,
        5,
        start(5, None, "launcher"),
        event("child-exit", 8, pid=7, signal=9),
        event("child-exit", 9, pid=8, code=3),
    )
    write(run, 7, start(7, 0))
    write(
        run, 8, start(8, 1), event("exit-call", 7, how="os._exit", status=3, frames=[["/x/a.py", 4, "leave"]])
    )
    found = {record.pid: record for record in collect(run).processes}
    assert (found[7].signal, found[7].exit_code, found[7].clean_end) == (9, None, False)
    assert (found[8].exit_code, found[8].exit_how) == (3, "os._exit")
    assert found[8].exit_call == (Frame("/x/a.py", 4, "leave"),)


def test_a_process_of_a_spawn_becomes_a_rank_by_its_initialisation(run: Path) -> None:
    write(run, 7, start(7, None, "other"), event("init", 3, rank=1, world_size=4, backend="gloo"))
    (record,) = collect(run).processes
    assert (record.role, record.rank, record.world_size) == ("rank", 1, 4)


def test_exceptions_keep_chain_and_frames_relative_to_the_directory(run: Path) -> None:
    frames = [[f"{run.parent}/data.py", 3, "load"], ["/usr/lib/python3.11/x.py", 9, "y"]]
    write(
        run,
        7,
        start(7, 0),
        event(
            "exception", 4, kind="uncaught", type="KeyError", message="'x'", frames=frames,
            chain=[{"link": "cause", "type": "OSError", "message": "gone", "frames": []}],
        ),
    )  # fmt: skip
    (exception,) = collect(run).exceptions
    assert (exception.rank, exception.type, exception.kind) == (0, "KeyError", "uncaught")
    assert exception.frames[0] == Frame("data.py", 3, "load")
    assert [(each.link, each.type) for each in exception.chain] == [("cause", "OSError")]


def test_secrets_in_messages_are_scrubbed(run: Path) -> None:
    text = "https://user:hunter2hunter2@host/x"
    write(run, 7, start(7, 0), event("exception", 4, type="ValueError", message=text, frames=[]))
    assert "hunter2" not in collect(run).exceptions[0].message


def test_a_fault_has_the_stack_of_the_thread_that_crashed(run: Path) -> None:
    write(run, 7, start(7, 3))
    (run / "processes" / "7-1.fault").write_text(FAULT.format(cwd=run.parent))
    (crash,) = collect(run).crashes
    assert (crash.rank, crash.title) == (3, "Fatal Python error: Segmentation fault")
    assert crash.frames == (Frame("data/native.py", 12, "crunch"), Frame("train.py", 40, "main"))
    assert crash.modules == ("numpy.core._multiarray_umath", "torch._C")


def test_known_texts_in_logs_are_matched_once_and_counted(run: Path) -> None:
    write(run, 7, start(7, 0))
    line = "RuntimeError: [/x/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9128\n"
    (run / "logs" / "rank-0.0.7.stderr.log").write_text("fine\n" + line * 3)
    found = collect(run)
    matches = [text for text in found.texts if text.stream == "stderr"]
    assert matches
    assert (matches[0].rank, matches[0].count) == (0, 3)
    assert found.processes[0].last_words is not None


def test_damage_is_passed_over_and_said(run: Path) -> None:
    write(run, 7, start(7, 0), "not json", '{"event": "milestone"}', event("exception", 4, frames=5))
    (run / "processes" / "8-1.jsonl").write_bytes(b"\xff\xfe\x00")
    found = collect(run)
    assert [record.pid for record in found.processes] == [7]
    write(run, 9, start(9, 1), event("trouble", 2, where="hooks", text="boom"))
    assert any("boom" in text for text in collect(run).lost)


def test_an_empty_directory_is_no_evidence(tmp_path: Path) -> None:
    found = collect_run(tmp_path)
    assert (found.processes, found.exceptions, found.lost) == ([], [], [])
