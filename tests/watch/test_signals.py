"""Waiting for signals, also where our own process is stopped meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.watch.launch.signals import SignalWait
from tests.watch.injecting import write
from tests.watch.launching import doctor, environ, finish, start, wait_for

WAITER = """
import os, signal, sys, time
from ddpdoctor.watch.launch.signals import SignalWait
numbers = [signal.SIGUSR1, signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
wait = SignalWait(numbers)
os.kill(os.getpid(), signal.SIGTERM)
print(wait(60), flush=True)  # leaves its traces in memory
while (heard := wait(0.2)) is None:
    pass
print(heard, flush=True)
"""


@pytest.fixture
def blocked() -> Iterator[SignalWait]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    yield SignalWait([signal.SIGUSR1])
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_signal_comes_with_who_sent_it(tmp_path: Path) -> None:
    """In a process of one thread: any other thread would take the signal, and the process with it."""
    script = WAITER.partition("while (heard")[0]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == f"Heard(number={int(signal.SIGTERM)}, code=0)"


def test_no_signal_is_none_when_the_time_is_over(blocked: SignalWait) -> None:
    began = time.monotonic()
    assert blocked(0.3) is None
    assert time.monotonic() - began >= 0.29


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stop_is_no_signal(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITER]
    with subprocess.Popen(command, env=environ(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"Heard(number={int(signal.SIGTERM)}, code=0)\n"
            for _ in range(5):
                process.send_signal(signal.SIGSTOP)
                wait_for(lambda: state(process.pid) == "T", "stopped")
                time.sleep(0.3)  # past the end of its wait
                process.send_signal(signal.SIGCONT)
                wait_for(lambda: state(process.pid) != "T", "goes on")
            process.send_signal(signal.SIGUSR1)
            assert process.stdout.readline() == f"Heard(number={int(signal.SIGUSR1)}, code=0)\n"
        finally:
            process.kill()


def test_a_supervisor_that_is_stopped_for_a_while_goes_on(tmp_path: Path) -> None:
    go = tmp_path / "go"
    write(
        tmp_path,
        f"import os, sys, time\nprint('begun', flush=True)\nwhile not os.path.exists({str(go)!r}):\n"
        "    time.sleep(0.05)\nprint('done')\nsys.exit(6)\n",
    )
    process = start(
        doctor(tmp_path, "--", sys.executable, "train.py"), tmp_path, tmp_path,
        env=environ(tmp_path, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0"),
    )  # fmt: skip
    logs = tmp_path / "run" / "logs"
    wait_for(lambda: any(b"begun" in log.read_bytes() for log in logs.glob("*.stdout.log")), "begun")
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: state(process.pid) == "T", "stopped")
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: state(process.pid) != "T", "goes on")
    go.touch()
    ended = finish(process, tmp_path)
    assert (ended.code, ended.stdout) == (6, b"begun\ndone\n")
    assert b"internal error" not in ended.stderr
