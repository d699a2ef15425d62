"""``run --live`` on a terminal beside a real job."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.watch.injecting import write
from tests.watch.launching import DOCTOR, LIMIT_S, environ, wait_for
from tests.watch.terminals import Terminal

JOB = """
    import os
    import sys
    import time
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print("half a ", end="", flush=True)
    while True:
        done = torch.tensor(float(os.path.exists("go")))
        dist.all_reduce(done, op=dist.ReduceOp.MIN)
        if done.item():
            break
        time.sleep(0.05)
    if dist.get_rank() == 0:
        print("line, now whole", flush=True)
        for number in range(60):
            print("line", number, flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""


class Session:
    """A command as the foreground of a terminal of its own."""

    def __init__(
        self, command: list[str], folder: Path, columns: int = 80, rows: int = 24, **streams: object
    ) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.terminal = Terminal(columns, rows)
        given: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave, **streams}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ(folder, TERM="xterm", LC_ALL="C.UTF-8"),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            **given,
        )
        os.close(slave)
        self.ended = False

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.terminal.resize(columns, rows)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def read(self) -> None:
        """Show what has come."""
        while not self.ended and select.select([self.master], [], [], 0.1)[0]:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # nobody has the terminal any more
                data = b""
            self.ended = not data
            self.terminal.feed(data)

    def until(self, condition: Callable[[Terminal], object], what: str) -> None:
        def holds() -> object:
            self.read()
            return condition(self.terminal)

        wait_for(holds, f"{what}; the screen:\n{self.terminal.text}")

    def finish(self) -> int:
        self.until(lambda _: self.ended, "the command has ended")
        return int(self.process.wait(LIMIT_S))

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.master)


def live(folder: Path, script: Path, *options: str) -> list[str]:
    run = ["--run-dir", str(folder / "run"), "--live", *options]
    return [*DOCTOR, *run, "--nproc", "2", "--standalone", str(script)]


def shows_rows(terminal: Terminal) -> bool:
    rows = [line for line in terminal.lines[-2:] if re.search(r"#\d+ .*(all_reduce|train\.py)", line)]
    return [line.split()[0] for line in rows] == ["0", "1"] and "ddpdoctor · 2 ranks" in terminal.text


def test_a_job_and_the_view_share_a_terminal(tmp_path: Path) -> None:
    session = Session(live(tmp_path, write(tmp_path, JOB)), tmp_path)
    try:
        session.until(shows_rows, "the view came")
        assert "half a" in session.terminal.lines
        (tmp_path / "go").touch()
        assert session.finish() == 0
    finally:
        session.close()
    assert session.terminal.margins == (0, 23)
    history = session.terminal.history
    assert "half a line, now whole\n" + "".join(f"line {number}\n" for number in range(60)) in history
    assert "last collective" not in history
    assert "nothing found" in history


def test_the_view_follows_the_terminal_and_ctrl_c_ends_it_with_the_job(tmp_path: Path) -> None:
    session = Session(live(tmp_path, write(tmp_path, JOB)), tmp_path, columns=120, rows=40)
    try:
        session.until(shows_rows, "the view came")
        session.resize(100, 30)
        session.until(
            lambda seen: shows_rows(seen) and seen.margins[1] < 29, "the view came to its new place"
        )
        assert session.terminal.text.count("last collective") == 1
        session.type(b"\x03")
        assert session.finish() != 0
    finally:
        session.close()
    assert session.terminal.margins == (0, 29)
    assert "last collective" not in session.terminal.history
    assert "KeyboardInterrupt" in session.terminal.history


@pytest.mark.long
def test_stdout_in_a_file_stays_the_jobs_alone(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        session = Session(live(tmp_path, write(tmp_path, JOB)), tmp_path, stdout=out)
    try:
        session.until(shows_rows, "the view came")
        (tmp_path / "go").touch()
        assert session.finish() == 0
    finally:
        session.close()
    expected = "half a line, now whole\n" + "".join(f"line {number}\n" for number in range(60))
    assert (tmp_path / "out").read_text() == expected


@pytest.mark.skipif(not os.access("/bin/bash", os.X_OK), reason="no bash, whose job control it needs")
@pytest.mark.long
def test_ctrl_z_gives_the_terminal_to_the_shell(tmp_path: Path) -> None:
    script = write(tmp_path, JOB)
    session = Session(["/bin/bash", "--norc", "--noediting", "-i"], tmp_path)
    try:
        session.type(b"PS1='shell> '; " + " ".join(live(tmp_path, script)).encode() + b"\n")
        session.until(shows_rows, "the view came")
        session.type(b"\x1a")
        session.until(lambda seen: "Stopped" in seen.text and "shell>" in seen.lines[seen.row], "it stopped")
        assert session.terminal.margins == (0, 23)
        assert "last collective" not in session.terminal.text
        session.type(b"fg\n")
        session.until(shows_rows, "the view came back")
        (tmp_path / "go").touch()
        session.until(lambda seen: "nothing found" in seen.text, "the job has ended")
        session.type(b"exit\n")
        assert session.finish() == 0
    finally:
        session.close()
