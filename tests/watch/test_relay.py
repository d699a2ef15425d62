"""Carrying and keeping what ranks write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.watch.launch.relay import BoundedLog


def write_all(path: Path, chunks: list[bytes], limit: int) -> bytes:
    log = BoundedLog(path.parent, path.name, limit)
    for chunk in chunks:
        log.write(chunk)
    log.close()
    return path.read_bytes()


@pytest.mark.parametrize("step", [1, 3, 7, 10, 64])
def test_a_stream_within_twice_the_limit_is_whole(tmp_path: Path, step: int) -> None:
    data = bytes(range(65, 65 + 20))
    chunks = [data[i : i + step] for i in range(0, len(data), step)]
    assert write_all(tmp_path / "log", chunks, 10) == data


@pytest.mark.parametrize("step", [1, 7, 10, 33, 500])
def test_a_longer_one_keeps_its_beginning_and_its_end(tmp_path: Path, step: int) -> None:
    data = b"".join(b"%04d" % i for i in range(250))
    chunks = [data[i : i + step] for i in range(0, len(data), step)]
    kept = write_all(tmp_path / "log", chunks, 100)
    assert kept.startswith(data[:100])
    assert kept.endswith(data[-100:])
    assert b"800 bytes omitted here" in kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


def test_a_full_disk_is_remembered_and_not_raised(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path, "log", 10)
    log._file.close()
    log._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115  # the log closes it
    log.write(b"x")
    log.write(b"y")
    log.close()
    assert log.lost is not None
    assert "No space" in log.lost


SCRIPT = """
import os, sys
sys.stdout.write("out\\n"); sys.stdout.flush()
sys.stderr.write("err\\n")
os.write(1, bytes(range(256)))
print(sys.stdout.isatty(), sys.stderr.isatty(), flush=True)
"""
RUN = """
import os, sys
from ddpdoctor.watch.launch.job import make_environment, run_job
from ddpdoctor.watch.rundir import make_run_directory
run = make_run_directory(sys.argv[1])
environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
result = run_job([sys.executable, "-c", sys.argv[2]], make_environment(environ, run, watch=True), run)
run.remove_private()
sys.exit(result.exit_code)
"""


def test_a_rank_writes_where_it_would_have_and_into_its_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run"), SCRIPT],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = b"out\n" + bytes(range(256)) + b"False False\n"
    assert done.stdout == expected
    assert done.stderr == b"err\n"
    logs = {path.name.split(".")[-2]: path.read_bytes() for path in (tmp_path / "run" / "logs").iterdir()}
    assert logs == {"stdout": expected, "stderr": b"err\n"}


def test_a_terminal_stays_a_terminal(tmp_path: Path) -> None:
    import os
    import pty

    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "run"), SCRIPT], stdout=slave, stderr=slave, close_fds=True
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.close(master)
    assert process.wait(120) == 0
    # The two streams meet in the terminal in any order, and a terminal hands on in pieces of its own size.
    seen = seen.replace(b"err\r\n", b"")
    assert b"True True" in seen
    assert b"out\r\n" in seen  # one line ending, by the real terminal


def test_a_line_of_ours_begins_where_the_jobs_has_ended(tmp_path: Path) -> None:
    import os
    import pty

    from ddpdoctor.watch.launch.relay import Relay, _Stream

    master, slave = pty.openpty()
    source, job = os.pipe()
    relay = Relay(tmp_path, tmp_path / "s")
    terminal, relay._targets = relay._targets, (slave, slave)
    stream = _Stream(source, slave, BoundedLog(tmp_path, "log"), True)
    try:
        for text in (b"whole\n", b"\rbar 10 %", b"", b" more\n"):
            os.write(job, text)
            if text:
                relay._carry(stream)
            relay.end_line()
            os.write(slave, b"ours\n")
        expected = b"whole\r\nours\r\n\rbar 10 %\r\nours\r\nours\r\n more\r\nours\r\n"
        seen = b""
        while len(seen) < len(expected):
            seen += os.read(master, 4096)
        assert seen == expected
        assert (tmp_path / "log").read_bytes() == b"whole\n\rbar 10 % more\n"
    finally:
        relay._targets = terminal
        relay.close()
        for descriptor in (master, slave, source, job):
            os.close(descriptor)


def test_the_exit_code_of_a_signal_is_a_shells(tmp_path: Path) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run"), script],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 128 + 9
