"""Stacks of other processes: taken for real, merged over ranks, and said why where they cannot be had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.watch.live import stacks
from ddpdoctor.watch.live.stacks import Stack, _parse, merge_stacks, name_problem, take_stacks

SLEEPER = """
import time
def inner():
    print("ready", flush=True)
    time.sleep(1000)
inner()
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(stacks, "find_py_spy", lambda: str(program))


def test_the_main_thread_of_a_process_is_read_innermost_first(sleeper: subprocess.Popen[str]) -> None:
    stack = take_stacks([sleeper.pid])[sleeper.pid]
    if stack.problem:
        pytest.skip(stack.problem)
    assert [frame.function for frame in stack.frames[:2]] == ["inner", "<module>"]
    assert stack.frames[0].line == 5


def test_a_stopped_process_is_told_by_its_state(sleeper: subprocess.Popen[str]) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        stack = take_stacks([sleeper.pid])[sleeper.pid]
        if stack.state == "T" or not stack.frames:
            break
    assert stack.state in ("T", "t")


def test_a_process_that_is_gone_is_said_so() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    stack = take_stacks([process.pid])[process.pid]
    assert stack.frames == ()
    assert stack.problem is not None


def test_without_permission_it_says_what_to_grant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: subprocess.Popen[str]
) -> None:
    pretend(monkeypatch, tmp_path, "echo 'Error: Permission Denied: Try running again with sudo' >&2; exit 1")
    stack = take_stacks([sleeper.pid])[sleeper.pid]
    assert stack.frames == ()
    assert stack.state in ("R", "S")  # it may not have gone to sleep yet
    assert "ptrace_scope" in (name_problem({0: stack}) or "")
    assert "SYS_PTRACE" in (stack.problem or "")


def test_without_py_spy_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[str]
) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    assert "pip install py-spy" in (take_stacks([sleeper.pid])[sleeper.pid].problem or "")


@pytest.mark.parametrize("output", ["", "[]", "not json", '[{"thread_name": "MainThread", "frames": []}]'])
def test_output_that_is_no_stack_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: subprocess.Popen[str], output: str
) -> None:
    pretend(monkeypatch, tmp_path, f"echo '{output}'")
    stack = take_stacks([sleeper.pid])[sleeper.pid]
    assert stack.frames == ()
    assert stack.problem is not None


def test_a_torn_stack_is_taken_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: subprocess.Popen[str]
) -> None:
    seen = '[{"thread_name": "MainThread", "frames": [{"filename": "a.py", "line": 3, "name": "A.f.<locals>.g"}]}]'
    pretend(
        monkeypatch,
        tmp_path,
        f"if [ -e {tmp_path}/second ]; then echo '{seen}'; else touch {tmp_path}/second; echo Error >&2; exit 1; fi",
    )
    assert take_stacks([sleeper.pid])[sleeper.pid].frames == (Frame("a.py", 3, "g"),)


SITE = "/x/lib/python3.11/site-packages"
SERVES = {
    "thread_name": "MainThread",
    "os_thread_id": 1,
    "frames": [{"filename": f"{SITE}/ray/w.py", "name": "loop"}],
}
TRAINS = {
    "thread_name": "T",
    "os_thread_id": 2,
    "frames": [{"filename": f"{SITE}/torch/distributed/distributed_c10d.py", "name": "barrier"},
               {"filename": "/home/me/train.py", "line": 3, "name": "loop"}],
}  # fmt: skip
MONITORS = {
    "thread_name": "M",
    "os_thread_id": 3,
    "frames": [{"filename": f"{SITE}/ray/m.py", "name": "watch"}],
}
READS = {"thread_name": "R", "os_thread_id": 4, "frames": [{"filename": "/home/me/data.py", "name": "read"}]}
SCRIPT = {
    "thread_name": "MainThread",
    "os_thread_id": 1,
    "frames": [{"filename": "/home/me/a.py", "name": "<module>"}],
}


@pytest.mark.parametrize(
    ("threads", "function", "thread"),
    [
        ((SERVES, TRAINS, MONITORS), "barrier", 2),
        ((SERVES, MONITORS), "loop", 0),
        ((SERVES, TRAINS, READS), "loop", 0),  # two run the user's code: which trains is not known
        ((SCRIPT, TRAINS), "<module>", 0),
    ],
)
def test_where_the_main_thread_only_serves_the_one_that_trains_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: tuple[object, ...], function: str, thread: int
) -> None:
    (tmp_path / "dump.json").write_text(json.dumps(threads))
    pretend(monkeypatch, tmp_path, f"cat {tmp_path}/dump.json")
    stack = take_stacks([os.getpid()])[os.getpid()]
    assert (stack.frames[0].function, stack.thread) == (function, thread)


@pytest.mark.parametrize("pause", [False, True])
def test_a_process_is_paused_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: subprocess.Popen[str], pause: bool
) -> None:
    pretend(monkeypatch, tmp_path, f"echo $* >> {tmp_path}/given")
    take_stacks([sleeper.pid], pause=pause)
    assert ("--nonblocking" in (tmp_path / "given").read_text()) is not pause


def test_a_py_spy_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: subprocess.Popen[str]
) -> None:
    pretend(monkeypatch, tmp_path, "exec sleep 100")
    assert take_stacks([sleeper.pid], limit_s=0.2)[sleeper.pid].problem is not None


def test_ranks_at_one_place_are_one_class_and_the_largest_comes_first() -> None:
    here, there = (Frame("a.py", 1, "f"),), (Frame("b.py", 2, "g"),)
    classes = merge_stacks({0: Stack(10, here), 1: Stack(11, there), 2: Stack(12, here)})
    assert [(each.ranks, each.frames) for each in classes] == [
        (RankSet([0, 2]), here),
        (RankSet([1]), there),
    ]


def test_a_name_that_is_no_text_is_no_obstacle(tmp_path: Path) -> None:
    """The kernel cuts names at 15 bytes, also in the middle of a character."""
    script = "import ctypes; ctypes.CDLL(None).prctl(15, b'entra\\xc3', 0, 0, 0); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.pid in take_stacks([process.pid])
        process.kill()


def test_further_threads_that_may_make_calls_are_told() -> None:
    def thread(name: str, *frames: tuple[str, int, str]) -> dict[str, Any]:
        rows = [{"filename": file, "line": line, "name": function} for file, line, function in frames]
        return {"thread_name": name, "os_thread_id": 7, "frames": rows}

    bootstrap = ("/usr/lib/python3.11/threading.py", 1002, "_bootstrap")
    threads = [
        thread("MainThread", ("/home/me/train.py", 9, "main")),
        thread("beats", ("/home/me/train.py", 20, "run"), bootstrap),
        thread("save", ("/usr/lib/python3.11/queue.py", 171, "get"),
               ("/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/state_dict_saver.py", 3, "save")),
        thread("monitor", ("/venv/lib/python3.11/site-packages/tqdm/_monitor.py", 60, "run"), bootstrap),
    ]  # fmt: skip
    stack = _parse(10, json.dumps(threads).encode())
    assert [(frame.file.rpartition("/")[2], frame.line) for frame in stack.others] == [
        ("train.py", 20),
        ("queue.py", 171),
    ]
