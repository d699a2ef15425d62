"""``run --live``: what the rows say, and the view on a terminal beside a real job."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.cli import main
from ddpdoctor.cli.viewing import make_view
from ddpdoctor.evidence import RankSet
from ddpdoctor.text.characters import width_of
from ddpdoctor.text.paper import Paper
from ddpdoctor.watch.lags import find_lags
from ddpdoctor.watch.live import LiveView, describe_last, describe_phase, fold, make_lines
from ddpdoctor.watch.memory import MemoryWatch
from ddpdoctor.watch.monitor import Monitor
from ddpdoctor.watch.policy import Policy, Ruling
from ddpdoctor.watch.progress import (
    BETWEEN,
    ENDED,
    FORWARD,
    GONE,
    IN_CALL,
    INSIDE,
    STARTING,
    Progress,
    ProgressReader,
    RankProgress,
)
from ddpdoctor.watch.rings import (
    COUNT_AT,
    HEAD,
    HEADER,
    MAGIC,
    OTHER,
    POINT_TO_POINT,
    RAISED,
    RECORD,
    Ring,
    Row,
)
from ddpdoctor.watch.rundir import RunDirectory
from ddpdoctor.watch.screen import Screen
from tests.watch.injecting import write
from tests.watch.launching import DOCTOR, LIMIT_S, environ, wait_for
from tests.watch.terminals import Terminal

SECOND = 10**9
MAIN = 77
ALL_REDUCE, BARRIER, SEND, PASS = 1, 2, 3, 4
"""Signatures of the rings below."""


def own_start() -> int:
    text = Path("/proc/self/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[19])


def make_ring(
    folder: Path, rank: int, rows: list[Row], *, pid: int | None = None, capacity: int = 64
) -> None:
    """A ring and a journal as a rank writes them; of this process unless told otherwise."""
    pid, ticks = pid or os.getpid(), own_start()
    stem = folder / f"{pid}-{ticks}"
    data = bytearray(HEADER + capacity * RECORD.size)
    HEAD.pack_into(data, 0, MAGIC, capacity, RECORD.size, pid, ticks, MAIN)
    data[COUNT_AT : COUNT_AT + 8] = (rows[-1].number if rows else 0).to_bytes(8, "little")
    for row in rows:
        RECORD.pack_into(
            data,
            HEADER + (row.number - 1) % capacity * RECORD.size,
            *(getattr(row, name) for name in Row.__slots__),
        )
    stem.with_suffix(".ring").write_bytes(data)
    events = [
        {"event": "start", "role": "rank", "rank": rank, "attempt": 0, "host": "a"},
        {"event": "init", "rank": rank, "world_size": 4, "backend": "gloo"},
        {"event": "signature", "number": ALL_REDUCE, "op": "all_reduce", "shape": [2]},
        {"event": "signature", "number": BARRIER, "op": "barrier"},
        {"event": "signature", "number": SEND, "op": "send"},
        {"event": "signature", "number": PASS, "op": FORWARD, "index": 1},
        {"event": "group", "number": 1, "name": "0", "ranks": [0, 1], "default": True},
        {"event": "group", "number": 2, "name": "1", "ranks": [0, 1], "default": False},
        {"event": "site", "number": 1, "frames": [["/job/train.py", 88, "train"]]},
        {"event": "site", "number": 2, "frames": [["/job/train.py", 31, "step"]]},
    ]
    lines = [json.dumps({"wall_ns": 1, "mono_ns": 1, **event}) for event in events]
    stem.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")


def call(
    number: int,
    signature: int = ALL_REDUCE,
    *,
    ordinal: int | None = None,
    end: bool = True,
    site: int = 1,
    group: int = 1,
    peer: int = -1,
    flags: int = 0,
) -> Row:
    begin = time.monotonic_ns() - 20 * SECOND + number
    end_ns = begin + 1 if end else 0
    group = 0 if flags & OTHER else group
    return Row(number, begin, end_ns, ordinal or number, signature, site, group, peer, 0, flags, MAIN)


def read_one(folder: Path, rows: list[Row], **options: int) -> RankProgress:
    make_ring(folder, 3, rows, **options)
    seen = ProgressReader(folder, folder, {os.getpid(): 5_000_000}).read()
    assert (seen.world_size, seen.backend) == (4, "gloo")
    (one,) = seen.ranks
    return one


def test_a_rank_in_a_collective(tmp_path: Path) -> None:
    one = read_one(tmp_path, [call(1, BARRIER), call(2), call(3, end=False)])
    assert (one.rank, one.phase, one.op, one.place, one.open) == (
        3,
        IN_CALL,
        "all_reduce",
        "train.py:88",
        True,
    )
    assert (one.last, one.last_number, one.last_place) == ("all_reduce", 3, "train.py:88")
    assert (one.step, one.forwards, one.calls, one.memory) == (3, False, 3, 5_000_000)
    assert one.since_s >= 20
    assert describe_phase(one)[0] == "in all_reduce 20 s"


def test_steps_are_forwards_where_there_are_any(tmp_path: Path) -> None:
    rows = [call(1, BARRIER), call(2, PASS, ordinal=41, site=2, flags=OTHER), call(3, ordinal=2)]
    one = read_one(tmp_path, rows)
    assert (one.step, one.forwards, one.exact) == (41, True, True)
    assert (one.phase, one.op, one.calls) == (BETWEEN, "all_reduce", 2)
    assert describe_phase(one)[0] == "outside 20 s"


def test_a_rank_after_a_forward_and_in_one(tmp_path: Path) -> None:
    rows = [call(1), call(2, PASS, ordinal=7, site=2, flags=OTHER)]
    one = read_one(tmp_path, rows)
    assert (one.phase, one.op, one.last) == (BETWEEN, FORWARD, "all_reduce")
    assert describe_phase(one) == ["after forward 20 s · train.py:31", "after forward 20 s"]
    rows[1] = replace(rows[1], end_ns=0)
    one = read_one(tmp_path, rows)
    assert one.phase == INSIDE
    assert describe_phase(one)[0] == "forward 20 s · train.py:31"


def test_sends_are_told_with_the_other_side_and_are_no_collectives(tmp_path: Path) -> None:
    one = read_one(tmp_path, [call(1), call(2, SEND, end=False, peer=6, site=2, flags=POINT_TO_POINT)])
    assert (one.last_number, one.calls, one.open) == (1, 1, False)
    assert describe_phase(one)[0] == "in send to 6 20 s · train.py:31"


def test_calls_of_other_groups_are_shown_but_not_compared(tmp_path: Path) -> None:
    one = read_one(tmp_path, [call(1), call(2, ordinal=70, group=2)])
    assert (one.last_number, one.calls) == (70, 1)


def test_a_call_that_has_raised_is_said(tmp_path: Path) -> None:
    one = read_one(tmp_path, [call(1), call(2, flags=RAISED)])
    assert describe_phase(one)[0] == "all_reduce has raised 20 s"


def test_calls_are_counted_on_from_look_to_look(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path, tmp_path, {})
    for newest, expected, exact in ((10, 10, True), (60, 60, True), (200, 124, False)):
        first = max(1, newest - 63)
        make_ring(tmp_path, 0, [call(number) for number in range(first, newest + 1)])
        (one,) = reader.read().ranks
        assert (one.step, one.exact) == (expected, exact)
    assert make_lines(Progress((one,)), Paper(), 12)[-1].split()[1] == "~124"


def test_a_rank_that_has_called_nothing_and_one_that_is_gone(tmp_path: Path) -> None:
    one = read_one(tmp_path, [])
    assert (one.phase, one.step, one.last) == (STARTING, None, None)
    assert describe_phase(one)[0].startswith("starting")
    for path in tmp_path.iterdir():
        path.unlink()
    one = read_one(tmp_path, [call(1)], pid=2**22 + 5)
    assert (one.phase, one.memory) == (GONE, None)
    assert describe_phase(one)[0] == "its process is gone"


def test_how_far_a_rank_is_behind_the_first(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        make_ring(tmp_path, 0, [call(number) for number in range(1, 9)])
        make_ring(tmp_path, 1, [call(number) for number in range(1, 6)])
        other = next(path for path in tmp_path.glob("*.ring"))
        text = Path(f"/proc/{process.pid}/stat").read_text()
        ticks = text[text.rindex(")") + 2 :].split()[19]
        for path in (other, other.with_suffix(".jsonl")):
            path.rename(tmp_path / f"{process.pid}-{ticks}{path.suffix}")
        make_ring(tmp_path, 0, [call(number) for number in range(1, 9)])
        seen = ProgressReader(tmp_path, tmp_path, {}).read()
        assert [(one.rank, one.behind) for one in seen.ranks] == [(0, 0), (1, 3)]
    finally:
        process.kill()
        process.communicate()


def rank(number: int, **more: Any) -> RankProgress:
    given: dict[str, Any] = {
        "phase": IN_CALL,
        "op": "all_reduce",
        "place": "train.py:88",
        "since_s": 43.0,
        "last": "all_reduce",
        "last_number": 128,
        "last_place": "train.py:88",
        "open": True,
        "step": 128,
        "forwards": True,
        "memory": 1_200_000_000,
        "cpu": 0.03,
        **more,
    }
    return RankProgress(number, **given)


LATE = {"phase": BETWEEN, "op": "all_reduce", "last_number": 127, "open": False, "step": 127, "behind": 1}
STANDING = Progress((rank(0), rank(1, **LATE), rank(2), rank(3)), 4, "gloo")


@pytest.mark.parametrize("width", [50, 80, 100, 120])
@pytest.mark.parametrize("ascii", [False, True])
def test_the_view_fits_every_terminal(width: int, ascii: bool) -> None:
    said = ("suspected", "suspected after 12 s: " + "Ranks 0, 2 and 3 wait in all_reduce #128. " * 12)
    paper = Paper(width=width, ascii=ascii)
    for progress in (STANDING, Progress(tuple(rank(n, cpu=12.0, step=10**7, **{}) for n in range(2000)))):
        for rows in (5, 7, 12, 20):
            lines = make_lines(progress, paper, rows, title=["ddpdoctor", "4 ranks"], said=said)
            assert len(lines) <= rows
            assert max(map(width_of, lines)) <= width
            assert not ascii or all(line.isascii() for line in lines)


def test_a_row_says_all_of_a_rank() -> None:
    lines = make_lines(STANDING, Paper(width=80), 12, title=["ddpdoctor", "4 ranks"])
    assert lines[0].startswith("── ddpdoctor · 4 ranks ───")
    assert lines[1].split() == "rank step doing last collective behind mem cpu".split()
    assert lines[2].split() == "0 128 in all_reduce 43 s #128 all_reduce train.py:88 1.2G 3%".split()
    assert lines[3].split() == "1 127 outside 43 s #127 all_reduce train.py:88 1 1.2G 3%".split()
    assert len(lines) == 6


def test_what_the_monitor_says_stands_above_the_rows() -> None:
    said = ("suspected", "suspected after 12 s: rank 1 sleeps")
    lines = make_lines(STANDING, Paper(color=True), 12, said=said)
    assert lines[1] == "\x1b[33;1msuspected after 12 s: rank 1 sleeps\x1b[0m"
    assert lines[4].startswith("\x1b[33;1m   1")
    assert not lines[3].startswith("\x1b")
    proved = make_lines(STANDING, Paper(color=True), 12, said=("proved", "COL002: rank 1"))
    assert proved[1].startswith("\x1b[31;1mCOL002")


def test_what_a_job_calls_itself_cannot_move_the_cursor() -> None:
    hostile = rank(
        0, phase=BETWEEN, last="x\x1b[2Jy", last_place="\x1b]0;t\x07.py:1", op="\x9b5n", place="\r\n"
    )
    lines = make_lines(Progress((hostile,)), Paper(width=120), 12, said=("proved", "a\x1b[Hb"))
    assert all(line.isprintable() for line in lines)


def test_too_many_ranks_are_folded_and_those_that_differ_come_first() -> None:
    ranks = [rank(number) for number in range(1024)]
    ranks[17] = rank(17, **LATE)
    ranks[800] = rank(800, phase=GONE)
    rows, left_out = fold(ranks, 10)
    assert left_out == 0
    assert [str(row.ranks) for row in rows] == ["17", "800", "0-16,18-799,801-1023"]
    assert [row.steps for row in rows] == [(127, 127), (128, 128), (128, 128)]
    lines = make_lines(Progress(tuple(ranks), 1024), Paper(), 8)
    assert lines[-1].split()[0] == "0-16,18-799,8…"


def test_kinds_that_have_no_room_are_counted() -> None:
    ranks = [rank(number, place=f"train.py:{number // 2}") for number in range(40)]
    rows, left_out = fold(ranks, 6)
    assert (len(rows), left_out) == (5, 30)
    assert rows[0].ranks == RankSet([0, 1])
    assert make_lines(Progress(tuple(ranks)), Paper(), 8)[-1] == "and 30 more ranks"


def test_folded_ranks_show_the_range_of_their_numbers() -> None:
    rows, _ = fold([rank(0, last_number=7), rank(1, last_number=9), rank(2, last_number=8)], 2)
    assert describe_last(rows[0])[0] == "#7-9 all_reduce train.py:88"


def test_ranks_that_have_ended_are_dim_and_keep_their_last_call() -> None:
    lines = make_lines(Progress((rank(0, phase=ENDED, memory=None, cpu=None),)), Paper(color=True), 12)
    assert lines[-1].startswith("\x1b[2m   0")
    assert "has ended" in lines[-1]
    assert lines[-1].endswith("#128 all_reduce train.py:88\x1b[0m")


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    yield master, slave
    os.close(master)
    os.close(slave)


def test_a_failure_of_the_view_is_said_once_and_the_view_goes(terminal: tuple[int, int]) -> None:
    def fail() -> Progress:
        raise KeyError("a defect")

    told: list[str] = []
    view = LiveView(Screen(terminal[1]), fail, lambda: None, color=False, ascii=False, tell=told.append)
    view.start()
    wait_for(lambda: told, "the failure was said")
    wait_for(lambda: not view._thread.is_alive(), "the thread has ended")
    view.close()
    assert told == ["the live view has ended: KeyError: 'a defect'; the job goes on"]


@pytest.mark.parametrize(("rows", "columns"), [(9, 80), (24, 49), (0, 0)])
def test_a_terminal_that_is_too_small_is_left_alone(
    terminal: tuple[int, int], rows: int, columns: int
) -> None:
    fcntl.ioctl(terminal[1], termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    view = LiveView(Screen(terminal[1]), lambda: STANDING, lambda: None, color=False, ascii=False, tell=print)
    assert view._make_lines() == []
    view.close()


def test_who_keeps_coming_late_is_shown() -> None:
    def ring(rank: int, late_ms: int) -> tuple[Ring, list[Row]]:
        made = Ring(Path(f"{rank}.ring"), rank, 1)
        made.signatures = {PASS: {"op": FORWARD, "index": 1}, ALL_REDUCE: {"op": "all_reduce"}}
        made.groups = {1: {"default": True}}
        rows = []
        for step in range(1, 9):
            came = step * SECOND + late_ms * 1_000_000
            rows.append(Row(2 * step, came - 5, came, step, PASS, 0, 0, -1, 0, OTHER, MAIN))
            # After the backward all are there at the same time.
            at = step * SECOND + SECOND // 2
            rows.append(Row(2 * step + 1, at, at + 9, step, ALL_REDUCE, 1, 1, -1, 0, 0, MAIN))
        return made, rows[2 * rank :]

    lags = find_lags({0: ring(0, 0), 1: ring(1, 45), 2: ring(2, 3)})
    assert lags == pytest.approx({0: 0.0, 1: 0.045, 2: 0.003})
    assert find_lags({0: ring(0, 0)}) == {}
    few = ring(1, 45)
    assert find_lags({0: ring(0, 0), 1: (few[0], few[1][-4:])}) == {}
    ranks = tuple(rank(number, late_s=lags[number]) for number in range(3))
    lines = make_lines(Progress(ranks), Paper(width=100), 12)
    assert lines[1].split() == "rank step doing last collective behind late mem cpu".split()
    assert ("45 ms" in lines[3], "ms" in lines[2], "3 ms" in lines[4]) == (True, False, True)
    assert "late" not in make_lines(Progress(ranks), Paper(width=50), 12)[1]
    folded = make_lines(Progress(tuple(rank(n, late_s=n / 1000) for n in range(40))), Paper(width=100), 6)
    assert "39 ms" in folded[2]


def test_the_title_says_how_fast_the_job_is_or_for_how_long_it_has_called_nothing(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view = LiveView(Screen(terminal[1]), lambda: STANDING, lambda: None, color=False, ascii=False, tell=print)

    def title(seconds: float, step: int, **more: Any) -> str:
        now[0] = 100.0 + seconds
        return " · ".join(view._title(Progress((rank(0, step=step, **more),), 4, "gloo", 1)))

    assert title(1, 10, since_s=0.1) == "ddpdoctor · 1 of 4 ranks · gloo · 00:01 · restart 1"
    assert title(3, 15, since_s=0.1).endswith("2.5 steps/s")
    assert title(63, 15, since_s=60.0).endswith("01:03 · restart 1 · no call for 60 s")
    assert title(64, 15, since_s=0.0).endswith("restart 1")
    assert title(84, 16, since_s=0.0).endswith("restart 1")
    assert title(92, 18, since_s=0.0).endswith("4.0 s a step")
    assert title(93, 1, since_s=0.0).endswith("restart 1")
    assert title(3693, 1, phase=STARTING, since_s=99.0).endswith("1:01:33 · restart 1")
    assert view._title(Progress(()))[0:2] == ["ddpdoctor", "1:01:33"]


def view_options(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(live=True, configured=frozenset(), **more)


def make_some_view(tmp_path: Path, options: argparse.Namespace) -> LiveView | None:
    monitor = Monitor(tmp_path, tmp_path, lambda look: Ruling(), Policy(), print)
    directory = RunDirectory(tmp_path, tmp_path)
    return make_view(options, directory, MemoryWatch(tmp_path), monitor)


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_one_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], term: str
) -> None:
    monkeypatch.setattr(os, "isatty", lambda number: True)
    monkeypatch.setenv("TERM", term)
    assert make_some_view(tmp_path, view_options()) is None
    assert capsys.readouterr().err == (
        f"ddpdoctor: --live draws nothing here: the terminal cannot move its cursor (TERM={term})\n"
    )


def test_without_a_terminal_there_is_one_hint_and_none_where_the_configuration_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda number: False)
    monkeypatch.setenv("TERM", "xterm")
    assert make_some_view(tmp_path, view_options()) is None
    assert "neither stderr nor stdout is a terminal" in capsys.readouterr().err
    configured = argparse.Namespace(live=True, configured=frozenset({"live"}))
    assert make_some_view(tmp_path, configured) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("terminals", "expected"), [((1, 2), 2), ((2,), 2), ((1,), 1)])
def test_the_view_is_on_stderr_or_else_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminals: tuple[int, ...], expected: int
) -> None:
    monkeypatch.setattr(os, "isatty", lambda number: number in terminals)
    monkeypatch.setenv("TERM", "xterm")
    view = make_some_view(tmp_path, view_options())
    assert view is not None
    assert view.screen._descriptor == expected


def test_it_is_refused_where_nothing_is_watched(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = write(tmp_path, "print(1)")
    assert main(["run", "--live", "--no-watch", str(script)]) == 2
    assert "--no-watch leaves nothing to see" in capsys.readouterr().err


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
