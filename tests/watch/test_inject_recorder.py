"""The worker server that the hook starts in a rank: it answers, and the program does not notice."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watch.injecting import Journal, environment, launch, read_journals, write
from tests.watch.launching import wait_for

BEGIN = """
    import os, sys, threading, time
    import torch
    import torch.distributed as dist

    def describe():
        return sorted(os.listdir("/proc/self/fd")), threading.active_count(), len(sys._current_frames())

    dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
"""
LINES = ("WorkerServer", "listening", "shutting down")


@pytest.fixture
def private() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ddt-", dir="/tmp") as name:
        yield Path(name)


def variables(folder: Path, private: Path | None, **more: str) -> dict[str, str]:
    given = {"MEET": str(folder / "meet"), **more}
    return {**given, "DDPDOCTOR_STREAMS": f"{private}/streams|0:0:0,0:0:0"} if private is not None else given


def ask(path: str, handler: str = "fr_trace_json") -> bytes:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(30)
        asking.connect(path)
        asking.sendall(
            f"POST /handler/{handler} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        data = b""
        while part := asking.recv(65536):
            data += part
    return data.partition(b"\r\n\r\n")[2]


def _launch(folder: Path, private: Path, source: str) -> tuple[subprocess.Popen[str], tuple[Journal, ...]]:
    """Start a rank that prints ``ready``; return it and what was written by then."""
    run = folder / "run"
    run.mkdir()
    rank = subprocess.Popen(
        [sys.executable, str(write(folder, source))],
        env=environment(run, **variables(folder, private)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert rank.stdout is not None
    assert rank.stdout.readline() == "ready\n"
    return rank, read_journals(run)


def start(
    folder: Path, private: Path, source: str, *, processes: int = 1
) -> tuple[subprocess.Popen[str], str]:
    """Start a rank that prints ``ready``, and has forked others by then; return it and the path of its server."""
    rank, journals = _launch(folder, private, source)
    by_pid = {journal.start["pid"]: journal.all("recorder") for journal in journals}
    assert all(len(events) == 1 and "socket" in events[0] for events in by_pid.values()), by_pid
    paths = {event["socket"] for events in by_pid.values() for event in events}
    assert len(paths) == len(by_pid) == processes
    return rank, by_pid[rank.pid][0]["socket"]


def test_it_answers_while_the_rank_holds_the_lock_of_the_interpreter(tmp_path: Path, private: Path) -> None:
    source = (
        BEGIN
        + """
    import ctypes
    print("ready", flush=True)
    ctypes.PyDLL(None).getchar()  # waits for stdin, and lets no other thread run
    """
    )
    rank, path = start(tmp_path, private, source)
    try:
        dump = json.loads(ask(path))
        assert [each["profiling_name"] for each in dump["entries"]] == ["gloo:all_reduce"]
        assert ask(path, "ping") == b"pong"
    finally:
        _, stderr = rank.communicate("x")
    assert rank.returncode in (0, -signal.SIGABRT), stderr  # torch itself aborts now and then at exit
    assert not any(line in stderr for line in LINES)
    if rank.returncode == 0:
        assert not os.path.exists(path)


def test_the_program_sees_nothing_of_it(tmp_path: Path, private: Path) -> None:
    source = (
        BEGIN
        + """
    print(describe(), flush=True)
    import gc, signal
    print(gc.isenabled(), signal.pthread_sigmask(signal.SIG_BLOCK, []), len(os.sched_getaffinity(0)))
    dist.destroy_process_group()
    """
    )
    runs = []
    for name, folder in (("with", private), ("without", None)):
        (tmp_path / name).mkdir()
        script = write(tmp_path / name, source)
        done = launch(
            [sys.executable, str(script)],
            tmp_path / name,
            variables=variables(tmp_path / name, folder),
        )
        assert done.returncode in (0, -signal.SIGABRT)
        runs.append(done)
    watched, plain = runs
    assert watched.stdout == plain.stdout
    assert not any(line in watched.stderr for line in LINES)
    assert "socket" in watched.main().one("recorder")
    assert "problem" in plain.main().one("recorder")


LATER = """
    import socket
    from ddpdoctor_watch.calls import recorder
    with socket.socket(socket.AF_UNIX) as asking:  # until the first one has all its threads
        asking.connect(recorder._path)
        asking.sendall(b"POST /handler/ping HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
        asking.recv(9)
    {spoil}
    recorder._started = 0
    recorder.start()
    print("ready", flush=True)
    sys.stdin.read()
"""


def start_again(
    folder: Path, private: Path, spoil: str
) -> tuple[subprocess.Popen[str], list[dict[str, object]]]:
    """Start a rank that starts its server a second time, under other conditions."""
    rank, journals = _launch(folder, private, BEGIN + LATER.format(spoil=spoil))
    (journal,) = journals
    return rank, journal.all("recorder")


@pytest.mark.long
def test_an_older_kernel_parts_descriptors_in_another_way(tmp_path: Path, private: Path) -> None:
    rank, told = start_again(tmp_path, private, "recorder._CLOSE_RANGE = 100_000")
    assert [event.get("problem") for event in told] == [None, None]
    assert ask(str(told[1]["socket"]), "ping") == b"pong"
    for task in _tasks(rank.pid):
        held = _read_descriptors(task)
        assert held.count("/dev/null") == 3
        assert len(held) <= 6
    _, stderr = rank.communicate("")
    assert not any(line in stderr for line in LINES)


@pytest.mark.long
def test_where_neither_is_allowed_there_is_no_server(tmp_path: Path, private: Path) -> None:
    spoil = "recorder._CLOSE_RANGE, recorder._CLONE_FILES = 100_000, 0x10000000"  # no thread may have that
    rank, told = start_again(tmp_path, private, spoil)
    assert "no descriptors of its own" in str(told[1]["problem"])
    assert rank.stdin is not None
    _, stderr = rank.communicate("")
    assert not any(line in stderr for line in LINES)


@pytest.mark.long
def test_where_there_is_no_room_for_threads_there_is_no_server(tmp_path: Path, private: Path) -> None:
    """C++ would end the process: it cannot tell anybody that a thread could not be had."""
    spoil = (
        "import resource; pages = int(open('/proc/self/statm').read().split()[0]);"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (40 << 20), -1))"
    )
    rank, told = start_again(tmp_path, private, spoil)
    assert told[1]["problem"] == "there is no room for its threads"
    rank.communicate("")
    assert rank.returncode in (0, -signal.SIGABRT)


@pytest.mark.long
def test_on_a_large_machine_it_makes_no_more_threads_than_on_a_small_one(
    tmp_path: Path, private: Path
) -> None:
    """The server makes as many as the processors that its maker may use."""
    spoil = (
        "os.sched_getaffinity = lambda _: set(range(64));"
        "os.sched_setaffinity = lambda who, cpus: print('bound to', len(cpus), file=sys.stderr, flush=True)"
    )
    rank, told = start_again(tmp_path, private, spoil)
    _, stderr = rank.communicate("")
    assert [event.get("problem") for event in told] == [None, None]
    assert "bound to 1\n" in stderr


@pytest.mark.long
def test_the_program_goes_on_when_the_server_has_its_threads(tmp_path: Path, private: Path) -> None:
    """Until then it could use up the room for them, and C++ would end it."""
    spoil = (
        "real, recorder.SETTLING_S = recorder._wait_for_threads, 60.0;"
        "recorder._wait_for_threads = lambda count: (real(count), print('has', count, file=sys.stderr, flush=True))"
    )
    rank, told = start_again(tmp_path, private, spoil)
    _, stderr = rank.communicate("")
    assert "socket" in told[1]
    assert re.search(r"^has (9|[1-3]\d)$", stderr, re.MULTILINE), stderr


@pytest.mark.long
def test_threads_are_waited_for_until_they_have_their_name(tmp_path: Path, private: Path) -> None:
    late = """
    from ddpdoctor_watch.calls import recorder
    recorder._NAME, recorder.SETTLING_S, named = "late", 60.0, []

    def name():
        time.sleep(0.3)
        named.append(1)
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write("late")
        time.sleep(60)

    threading.Thread(target=name, daemon=True).start()
    recorder._wait_for_threads(1)
    print("ready" if named else "too early", flush=True)
    os._exit(0)
"""
    rank, _ = _launch(tmp_path, private, BEGIN + late)
    assert rank.wait(60) == 0


@pytest.mark.long
def test_where_it_would_make_too_many_threads_there_is_no_server(tmp_path: Path, private: Path) -> None:
    rank, told = start_again(tmp_path, private, "recorder.MOST_THREADS = 4")
    rank.communicate("")
    assert re.fullmatch(r"the worker server would start \d+ threads here", str(told[1]["problem"]))


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it ended since the threads were listed


def _tasks(pid: int) -> list[Path]:
    return [task for task in Path(f"/proc/{pid}/task").iterdir() if _name(task) == "pt_workerserver"]


def _read_descriptors(task: Path) -> list[str]:
    """Where a thread's descriptors lead; the last request's connection may be closing meanwhile."""
    held = []
    for each in (task / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.append(os.readlink(each))
    return held


@pytest.mark.long
def test_its_threads_have_descriptors_of_their_own_and_take_no_signals(tmp_path: Path, private: Path) -> None:
    source = (
        BEGIN
        + """
    print("ready", flush=True)
    sys.stdin.read()
    """
    )
    rank, path = start(tmp_path, private, source)
    assert ask(path, "ping") == b"pong"
    # A thread that one of them starts has its name as well, until it has one of its own.
    wait_for(
        lambda: 0 < len(_tasks(rank.pid)) <= 9, "the server has its threads, and no others have their name"
    )
    for task in _tasks(rank.pid):
        held = _read_descriptors(task)
        assert held.count("/dev/null") == 3
        assert all(each == "/dev/null" or each.startswith(("socket:", "anon_inode:")) for each in held)
        blocked = int((task / "status").read_text().partition("SigBlk:")[2].split()[0], 16)
        assert blocked >> (signal.SIGTERM - 1) & 1
        assert blocked >> (signal.SIGUSR1 - 1) & 1
    rank.communicate("")


@pytest.mark.long
def test_a_forked_child_has_none_and_gets_its_own(tmp_path: Path, private: Path) -> None:
    source = (
        BEGIN
        + """
    from ddpdoctor_watch.calls import recorder
    if os.fork() == 0:
        recorder.close()  # not its own
        recorder.start()
        os._exit(0)
    os.wait()
    print("ready", flush=True)
    sys.stdin.read()
    """
    )
    rank, path = start(tmp_path, private, source, processes=2)
    assert ask(path, "ping") == b"pong"
    rank.communicate("")


@pytest.mark.long
def test_a_server_of_the_programs_own_still_works(tmp_path: Path, private: Path) -> None:
    source = (
        BEGIN
        + """
    from torch._C._distributed_c10d import _WorkerServer
    own = _WorkerServer(os.environ["MEET"] + ".own", -1)
    print("ready", flush=True)
    sys.stdin.read()
    own.shutdown()
    dist.destroy_process_group()
    """
    )
    rank, path = start(tmp_path, private, source)
    assert ask(f"{tmp_path}/meet.own", "ping") == b"pong"
    assert ask(path, "ping") == b"pong"
    _, stderr = rank.communicate("")
    assert "WorkerServer" in stderr  # its own lines stay


@pytest.mark.parametrize("spoil", ["missing", "open", "long", "no server"])
@pytest.mark.long
def test_without_a_place_or_a_server_there_is_none(tmp_path: Path, private: Path, spoil: str) -> None:
    source = BEGIN + "\n    dist.destroy_process_group()\n"
    folder = private
    if spoil == "missing":
        folder = private / "gone"
    elif spoil == "open":
        private.chmod(0o755)
    elif spoil == "long":
        folder = private / ("x" * 90)
        folder.mkdir(mode=0o700)
    else:
        source = "\n    import torch._C._distributed_c10d as c; del c._WorkerServer" + source
    script = write(tmp_path, source)
    done = launch([sys.executable, str(script)], tmp_path, variables=variables(tmp_path, folder))
    assert done.returncode in (0, -signal.SIGABRT), done.stderr
    (told,) = done.every("recorder")
    assert told["problem"]
    assert not list(folder.glob("fr-*"))


@pytest.mark.long
def test_a_server_that_was_left_is_refused_by_nobody(tmp_path: Path, private: Path) -> None:
    """After SIGKILL the file stays; who asks hears that nobody listens."""
    rank, path = start(tmp_path, private, BEGIN + '\n    print("ready", flush=True)\n    sys.stdin.read()\n')
    rank.kill()
    rank.communicate()
    wait_for(lambda: not os.path.exists(f"/proc/{rank.pid}"), "the rank stayed")
    assert os.path.exists(path)
    with pytest.raises(ConnectionRefusedError):
        ask(path)
