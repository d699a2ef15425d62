"""From what processes wrote down to evidence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.texts.matching import TextHit, scan_chunk
from ddpdoctor.watch.readers import logs
from ddpdoctor.watch.readers.collect import Collected, collect_run
from ddpdoctor.watch.readers.senders import UNSEEN, UNSEEN_OR_KERNEL

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
    assert [each.name for each in record.milestones] == ["start", "init", "end"]
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


def test_the_version_of_python_is_that_of_each_process(run: Path) -> None:
    begin = json.loads(start(7, 0))
    write(run, 7, json.dumps({**begin, "python": "3.12.1"}))
    write(run, 8, start(8, 1))
    assert [record.python for record in collect(run).processes] == ["3.12.1", None]


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


def test_a_text_that_is_cut_between_two_reads_is_found_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "CHUNK", 64)
    write(run, 7, start(7, 0))
    line = "RuntimeError: [/x/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9128\n"
    (run / "logs" / "rank-0.0.7.stderr.log").write_text("fine\n" * 10 + line + "x" * 500 + "\n" + line)
    (match,) = [text for text in collect(run).texts if text.stream == "stderr"]
    assert match.count == 2


def test_output_without_line_ends_is_cut_and_not_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CHUNK", 1 << 10)
    monkeypatch.setattr(logs, "LONGEST_LINE", 1 << 12)
    lengths: list[int] = []
    scan = scan_chunk

    def measure(data: bytes) -> Iterator[tuple[int, str, list[TextHit]]]:
        lengths.append(len(data))
        return scan(data)

    monkeypatch.setattr(logs, "scan_chunk", measure)
    write(run, 7, start(7, 0))
    (run / "logs" / "rank-0.0.7.stdout.log").write_bytes(b"\x00Q" * (1 << 15))
    assert not collect(run).texts
    assert sum(lengths) == 1 << 16
    assert max(lengths) <= (1 << 12) + (1 << 10)


def exit_call(second: int, status: int, **more: Any) -> str:
    values = {"how": "sys.exit", "status": status, "frames": [["/x/a.py", 4, "leave"]], **more}
    return event("exit-call", second, **values)


def test_an_exit_carries_its_text_and_the_exception_in_whose_handler_it_stood(run: Path) -> None:
    told = {"type": "KeyError", "message": "'x'", "frames": [["/x/a.py", 9, "look"]], "chain": []}
    write(run, 5, start(5, None, "launcher"), event("child-exit", 8, pid=7, code=1))
    write(run, 7, start(7, 1), exit_call(4, 1, text="no --token=hunter2hunter2", exception=told))
    found = collect(run)
    record = next(each for each in found.processes if each.pid == 7)
    assert record.exit_text is not None
    assert record.exit_text.startswith("no --token=")
    assert "hunter2" not in record.exit_text
    (handled,) = found.exceptions
    assert (handled.kind, handled.type, handled.rank, handled.frames[0].line) == ("handled", "KeyError", 1, 9)
    assert handled.at is not None
    assert handled.at.wall_ns == 4 * 10**9


@pytest.mark.parametrize(
    "after",
    [
        [event("child-exit", 8, pid=7, code=3)],
        [event("child-exit", 8, pid=7, signal=11)],
    ],
    ids=["another status", "a signal"],
)
def test_an_exit_that_was_caught_is_not_the_end(run: Path, after: list[str]) -> None:
    told = {"type": "KeyError", "message": "'x'", "frames": []}
    write(run, 5, start(5, None, "launcher"), *after)
    write(run, 7, start(7, 1), exit_call(4, 1, exception=told))
    found = collect(run)
    record = next(each for each in found.processes if each.pid == 7)
    assert (record.exit_how, record.exit_call, record.exit_text) == (None, (), None)
    assert found.exceptions == []


def test_an_exception_after_a_caught_exit_is_what_counts(run: Path) -> None:
    told = {"type": "KeyError", "message": "'x'", "frames": []}
    write(
        run, 7, start(7, 1), exit_call(4, 1, exception=told),
        event("exception", 6, kind="uncaught", type="OSError", message="gone", frames=[]),
    )  # fmt: skip
    write(run, 5, start(5, None, "launcher"), event("child-exit", 8, pid=7, code=1))
    found = collect(run)
    assert [each.type for each in found.exceptions] == ["OSError"]
    assert next(each for each in found.processes if each.pid == 7).exit_how is None


def test_the_error_of_a_pool_keeps_the_frames_of_both_sides(run: Path) -> None:
    parent = {"type": "KeyError", "frames": [["/x/train.py", 9, "main"]]}
    write(
        run, 7, start(7, 0),
        event("exception", 4, type="KeyError", message="'x'", frames=[["/x/a.py", 3, "work"]], parent=parent),
    )  # fmt: skip
    (exception,) = collect(run).exceptions
    assert [frame.line for frame in (*exception.frames, *exception.parent_frames)] == [3, 9]


def test_a_rank_that_never_gets_into_its_group_is_a_rank(run: Path) -> None:
    detail = {"backend": "gloo", "init_method": "env://", "rank": 1, "world_size": 3}
    write(run, 7, start(7, None, "other"), event("milestone", 3, name="init-begin", detail=detail))
    write(
        run,
        8,
        start(8, None, "other"),
        event(
            "milestone", 3, name="init-begin", detail={**detail, "rank": -1, "world_size": -1},
            variables={"RANK": "0", "WORLD_SIZE": "3"},
        ),
    )  # fmt: skip
    one, other = collect(run).processes
    assert (one.role, one.rank, one.world_size, one.init_method) == ("rank", 1, 3, "env://")
    assert (other.role, other.rank, other.world_size, other.backend) == ("rank", 0, 3, "gloo")


def test_settings_are_those_with_which_a_rank_joins_its_group(run: Path) -> None:
    """A script may set variables of NCCL before its group is made; what its launcher said of the rank stays."""
    given = {"RANK": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO"}
    later = {"RANK": "5", "NCCL_SOCKET_IFNAME": "eth9", "HOME": "/root"}
    write(
        run, 7, start(7, 1, variables=given),
        event("milestone", 3, name="init-begin", detail={"backend": "nccl"}, variables=later),
    )  # fmt: skip
    (process,) = collect(run).processes
    assert process.variables == {"RANK": "1", "NCCL_SOCKET_IFNAME": "eth9"}


def test_the_limit_of_open_files_is_kept(run: Path) -> None:
    write(
        run, 7, start(7, 0, open_files=1024),
        event("exception", 4, type="OSError", message="[Errno 24] Too many open files", frames=[], open_files=64),
    )  # fmt: skip
    write(run, 8, start(8, 1, open_files=1024))
    assert [each.open_files_limit for each in collect(run).processes] == [64, 1024]


def kill(second: int, number: int, **target: Any) -> str:
    return event("kill", second, signal=number, **target)


def test_the_sender_of_a_signal_is_named(run: Path) -> None:
    agent = event("role", 2, role="launcher", how="elastic agent")
    ends = [event("child-exit", 9, pid=pid, signal=15) for pid in (7, 8)]
    ends += [event("child-exit", 9, pid=pid, signal=9) for pid in (9, 10)]
    write(run, 5, start(5, None, "launcher"), agent, kill(8, 15, pgid=7), *ends)
    for pid in (7, 8, 10):
        write(run, pid, start(pid, pid - 7, ppid=5))
    write(run, 9, start(9, 2, ppid=5), kill(6, 9, pid=9, frames=[["/x/a.py", 4, "stop"]]), kill(6, 9, pid=10))
    found = {record.pid: record for record in collect(run).processes}
    assert found[7].signal_sender == "agent (pid 5)"
    assert found[8].signal_sender == UNSEEN
    assert found[9].signal_sender == "itself"
    assert found[9].exit_call == (Frame("/x/a.py", 4, "stop"),)
    assert found[10].signal_sender == "rank 2 (pid 9)"


@pytest.mark.parametrize("asked", [False, True])
def test_a_kill_may_be_the_kernels_where_the_agent_had_not_asked_before(run: Path, asked: bool) -> None:
    lines = [event("role", 2, role="launcher", how="elastic agent"), event("child-exit", 9, pid=7, signal=9)]
    write(run, 5, start(5, None, "launcher"), *([kill(4, 15, pgid=7)] if asked else []), *lines)
    write(run, 7, start(7, 0, ppid=5))
    found = {record.pid: record for record in collect(run).processes}
    assert found[7].signal_sender == (None if asked else UNSEEN_OR_KERNEL)


def test_a_process_whose_end_nobody_saw_ended_by_the_kill_that_it_was_sent(run: Path) -> None:
    """Under a launcher that is no Python process (Ray's raylet) nobody writes down how ranks end."""
    write(run, 7, start(7, 0), kill(5, 9, pid=7, frames=[["/x/a.py", 4, "stop"]]))
    write(run, 8, start(8, 1), kill(6, 15, pid=8))
    found = {record.pid: record for record in collect(run).processes}
    assert (found[7].signal, found[7].signal_sender) == (9, "itself")
    assert found[7].ended == Moment(5 * 10**9, 5 * 10**9)
    assert found[8].signal is None  # it may have handled that


def test_a_parent_that_ends_its_children_is_named_as_such(run: Path) -> None:
    ends = [event("child-exit", 9, pid=7, signal=15), event("child-exit", 9, pid=8, signal=15)]
    write(run, 5, start(5, None, "other", script="spawn.py"), kill(8, 15, pid=7), *ends)
    write(run, 7, start(7, 0, ppid=5))
    write(run, 8, start(8, 1, ppid=5))
    found = {record.pid: record for record in collect(run).processes}
    assert found[7].signal_sender == "its parent (pid 5)"
    assert found[8].signal_sender == UNSEEN


def test_a_fork_servers_owner_is_a_parent_too(run: Path) -> None:
    write(run, 5, start(5, None, "other", script="spawn.py"), kill(8, 15, pid=7))
    write(run, 6, start(6, None, "other", ppid=5), event("child-exit", 9, pid=7, signal=15))
    write(run, 7, start(7, 0, ppid=6))
    found = {record.pid: record for record in collect(run).processes}
    assert found[7].signal_sender == "its parent (pid 5)"


def test_a_signal_for_a_group_may_have_reached_any_child(run: Path) -> None:
    end = event("child-exit", 9, pid=7, signal=15)
    write(run, 5, start(5, None, "other", script="spawn.py"), kill(8, 15, pgid=3), end)
    write(run, 7, start(7, 0, ppid=5))
    assert {record.pid: record for record in collect(run).processes}[7].signal_sender is None


def test_a_signal_for_an_earlier_process_of_the_same_number_is_not_its_end(run: Path) -> None:
    agent = event("role", 2, role="launcher", how="elastic agent")
    end = event("child-exit", 9, pid=7, signal=15)
    write(run, 5, start(5, None, "launcher"), agent, kill(0, 15, pid=7), end)
    write(run, 7, start(7, 0, ppid=5))
    found = {record.pid: record for record in collect(run).processes}
    assert found[7].signal_sender == UNSEEN


def test_a_process_that_killed_itself_needs_no_parent_that_says_so(run: Path) -> None:
    write(run, 7, start(7, 0), kill(3, 9, pid=7, frames=[["/x/a.py", 4, "stop"]]))
    write(run, 8, start(8, 1), kill(3, 15, pid=8))
    write(run, 9, start(9, 2), kill(3, 9, pid=9), event("end", 4))
    ends = [(p.signal, p.signal_sender, len(p.exit_call)) for p in collect(run).processes]
    assert ends == [(9, "itself", 1), (None, None, 0), (None, None, 0)], "SIGTERM may be handled"


def test_a_fault_is_dated_by_its_file_unless_that_cannot_be(run: Path) -> None:
    write(run, 7, start(7, 3))
    write(run, 8, start(8, 4))
    for pid, second in ((7, 5), (8, 0)):
        fault = run / "processes" / f"{pid}-1.fault"
        fault.write_text(FAULT.format(cwd=run.parent))
        os.utime(fault, (second, second))
    when = {crash.pid: crash.at for crash in collect(run).crashes}
    assert when[7] is not None
    assert when[7].wall_ns == 5 * 10**9
    assert when[8] is None  # before the process began


def test_a_crash_in_a_thread_without_python_is_told_by_the_main_threads_line(run: Path) -> None:
    write(run, 7, start(7, 0))
    (run / "processes" / "7-1.fault").write_text(
        "Fatal Python error: Aborted\n\n"
        'Thread 0x0001 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 331 in wait\n'
        '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap\n\n'
        f'Thread 0x0002 (most recent call first):\n  File "{run.parent}/train.py", line 9 in step\n'
        f'  File "{run.parent}/train.py", line 20 in <module>\n'
    )
    (crash,) = collect(run).crashes
    assert [frame.line for frame in crash.frames] == [9, 20]


def test_when_a_launcher_told_a_process_to_end_is_kept(run: Path) -> None:
    agent = event("role", 2, role="launcher", how="elastic agent")
    write(
        run, 5, start(5, None, "launcher"), agent, kill(7, 15, pgid=7), kill(8, 9, pgid=7), kill(7, 10, pid=8)
    )
    write(run, 7, start(7, 0, ppid=5))
    write(run, 8, start(8, 1, ppid=5), kill(6, 15, pid=9))
    write(run, 9, start(9, 2, ppid=5))
    told = {
        record.pid: [
            (each.at.wall_ns // 10**9, each.detail)
            for each in record.milestones
            if each.name == "told-to-end"
        ]
        for record in collect(run).processes
    }
    assert told == {5: [], 7: [(7, "agent (pid 5)")], 8: [], 9: []}


def test_a_crash_names_the_native_library_where_python_writes_it(run: Path) -> None:
    stack = (
        "\nCurrent thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x28 [0x562f]\n'
        '  Binary file "/usr/lib/libc.so.6", at +0x3c050 [0x7f7b]\n'
        '  Binary file "/srv/venv/lib/decoder.cpython-314-x86_64-linux-gnu.so", at decode+0x12 [0x7f7a]\n'
        '  Binary file "/usr/bin/python3.14", at _PyEval_EvalFrameDefault+0x1 [0x5630]\n'
    )
    write(run, 7, start(7, 3))
    write(run, 8, start(8, 4))
    (run / "processes" / "7-1.fault").write_text(FAULT.format(cwd=run.parent) + stack)
    (run / "processes" / "8-1.fault").write_text(FAULT.format(cwd=run.parent))
    native = {crash.pid: crash.native for crash in collect(run).crashes}
    assert native == {7: "decoder.cpython-314-x86_64-linux-gnu.so", 8: None}
