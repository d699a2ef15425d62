"""Native frames: taken for real, read from what py-spy gives, and taken of each rank once."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.native import NativeFrame
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.watch.live import native
from ddpdoctor.watch.live.monitor import Monitor
from ddpdoctor.watch.live.native import Insight, Native, look_inside, take_native
from ddpdoctor.watch.live.policy import Policy, Ruling
from ddpdoctor.watch.live.stacks import find_py_spy

PAUSED = "import ctypes; print('ready', flush=True); ctypes.PyDLL(None).pause()"
WORK = NativeFrame("do_work", "libfoo.so")


@pytest.fixture
def paused() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", PAUSED], stdout=subprocess.PIPE, text=True)
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
    monkeypatch.setattr(native, "find_py_spy", lambda: str(program))


def row(name: str, module: str | None, file: str | None = None, line: int = 0) -> dict[str, Any]:
    return {"name": name, "module": module, "filename": file or module, "line": line}


def thread(number: int, *rows: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    return {"os_thread_id": number, "thread_name": name, "frames": list(rows)}


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(find_py_spy() is None, reason="no py-spy")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="py-spy unwinds native stacks on few machines")
def test_the_function_in_which_a_process_stands_is_read_and_it_goes_on(
    paused: subprocess.Popen[str],
) -> None:
    end = time.monotonic() + 30
    found = Native(0)
    while not any(frame.function == "pause" for frame in found.frames) and time.monotonic() < end:
        found = take_native([paused.pid])[paused.pid]
        if found.problem:
            pytest.skip(found.problem)
    assert found.frames[0].function == "pause"
    assert found.frames[0].library.startswith("libc")
    assert all(not frame.function.startswith("0x") for frame in found.frames)
    assert state_of(paused.pid) == "S"  # not left stopped


def test_frames_are_taken_down_to_the_innermost_line_of_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = thread(8, row("poll", "/usr/lib/libc.so.6"), name="MainThread")
    main = thread(
        7,
        row("0x7f3a6f7c3f7a", "/usr/lib/libfoo.so"),
        row("Decoder::decode(int, char const*)", "/usr/lib/libfoo.so", "/build/src/decode.cc", 12),
        row("call", "/usr/lib/_foo.cpython-311-x86_64-linux-gnu.so"),
        row("flock", "/usr/lib/python3.11/lib-dynload/fcntl.cpython-311-x86_64-linux-gnu.so"),
        row("work", None, "/home/me/train.py", 5),
        row("main", "/usr/bin/python3.11"),
    )
    pretend(monkeypatch, tmp_path, f"echo '{json.dumps([other, main])}'")
    assert take_native([7])[7] == Native(
        7,
        (
            NativeFrame("?", "libfoo.so"),
            NativeFrame("Decoder::decode", "libfoo.so", "decode.cc:12"),
            NativeFrame("call", "_foo.so"),
            NativeFrame("flock", "python/fcntl.so"),
        ),
    )


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("echo 'Collecting stack traces from native extensions (`--native`) is not supported on your platform.' >&2; "
         "exit 1", "py-spy cannot sample native frames on this machine"),
        ("echo \"error: unexpected argument '--native' found\" >&2; exit 2", "py-spy cannot sample native frames on this"),
        ("echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1", "SYS_PTRACE"),
        ("echo 'Error: no such process' >&2; exit 1", "Error: no such process"),
        ("echo '[]'", "nothing readable"),
        ("echo '[3]'", "nothing readable"),
        ("echo no json", "nothing readable"),
        ("exec sleep 100", "timed out"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, problem: str
) -> None:
    pretend(monkeypatch, tmp_path, output)
    found = take_native([7], limit_s=0.3 if "sleep" in output else 60.0)[7]
    assert found.frames == ()
    assert problem in (found.problem or "")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes whose native frames were taken."""
    pids: list[int] = []

    def take(wanted: Iterable[int]) -> dict[int, Native]:
        listed = list(wanted)
        pids.extend(listed)
        return {pid: Native(pid, (WORK,)) for pid in listed}

    monkeypatch.setattr(native, "take_native", take)
    return pids


def look(*stands: Stand, still: float = 12.0) -> Standstill:
    return Standstill(Moment(0), 20.0, still, stands, len(stands))


def test_each_rank_is_looked_into_once_and_others_of_its_number_are_not(taken: list[int]) -> None:
    insight = Insight()
    seen = look(Stand(0, 10), Stand(1, 11), Stand(2, 11))  # rank 2 is on another node
    for _ in range(3):
        deeper = insight.add(seen, [(1, 11)])
    assert taken == [11]
    assert [stand.native for stand in deeper.stands] == [(), (WORK,), ()]
    insight.forget()
    assert all(not stand.native for stand in insight.add(seen, [(1, 11)]).stands)
    assert taken == [11]


def test_not_all_of_many_ranks_are_stopped(taken: list[int]) -> None:
    stands = [Stand(rank, 100 + rank) for rank in range(64)]
    Insight().add(look(*stands), [(stand.rank, stand.pid) for stand in stands])
    assert len(taken) == native.MOST_RANKS


def test_on_request_all_that_live_are_looked_into(taken: list[int]) -> None:
    deeper = look_inside(look(Stand(0, 10), Stand(1, 11, alive=False), Stand(2, 12)))
    assert sorted(taken) == [10, 12]
    assert [bool(stand.native) for stand in deeper.stands] == [True, False, True]


@pytest.mark.parametrize(("still", "unclear", "asked"), [(12.0, (1,), 0), (310.0, (1,), 1), (310.0, (), 0)])
def test_a_running_job_is_looked_into_once_a_stall_is_confirmed(
    tmp_path: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch, still: float, unclear: tuple[int, ...], asked: int
) -> None:  # fmt: skip
    judged: list[Standstill] = []

    def judge(seen: Standstill) -> Ruling:
        judged.append(seen)
        return Ruling(stalled=True, ranks=(1,), unclear=unclear)

    monitor = Monitor(tmp_path, tmp_path, judge, Policy(), lambda text: None)
    monkeypatch.setattr(monitor._ranks, "find", lambda: [Stand(0, 10), Stand(1, 11)])  # as rings are numbered
    monitor._rule(look(Stand(0, 10), Stand(1, 11), still=still), 10.0, [])
    assert taken == [11] * asked
    assert [stand.native for stand in judged[-1].stands] == [(), (WORK,) * asked]
