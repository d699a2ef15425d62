"""``run --live``: what the rows say."""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.cli import main
from ddpdoctor.cli.running.viewing import make_view
from ddpdoctor.evidence import RankSet
from ddpdoctor.facts.wire import FORWARD, OTHER
from ddpdoctor.text.characters import width_of
from ddpdoctor.text.paper import Paper
from ddpdoctor.watch.live.lags import find_lags
from ddpdoctor.watch.live.memory import MemoryWatch
from ddpdoctor.watch.live.monitor import Monitor
from ddpdoctor.watch.live.policy import Policy, Ruling
from ddpdoctor.watch.readers.rings import Ring, Row
from ddpdoctor.watch.rundir import RunDirectory
from ddpdoctor.watch.view.live_view import LiveView
from ddpdoctor.watch.view.rank_progress import (
    BETWEEN,
    ENDED,
    GONE,
    IN_CALL,
    STARTING,
    Progress,
    RankProgress,
)
from ddpdoctor.watch.view.screen import Screen
from ddpdoctor.watch.view.table import describe_last, fold, make_lines
from tests.watch.injecting import write
from tests.watch.launching import wait_for

SECOND = 10**9
MAIN = 77
ALL_REDUCE, PASS = 1, 4
"""Signatures of the rings below."""


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
    assert told == ["the live view has ended: KeyError: 'a defect'; the job continues"]


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


def test_where_the_time_of_a_step_goes_stands_below_the_title() -> None:
    # other, data, starting, forward, backward, optimizer, collectives
    ranks = (
        rank(0, spent=(0.001, 0.010, 0.002, 0.02, 0.05, 0.0, 0.01)),
        rank(1, spent=(0.001, 0.030, 0.0, 0.02, 0.03, 0.0, 0.01)),
        rank(2),
    )
    lines = make_lines(Progress(ranks), Paper(width=80), 12, title=["ddpdoctor"])
    assert lines[1] == "92 ms a step: data 23% · forward 22% · backward 43% · collectives 11% · other 1%"
    assert lines[2].startswith("rank")
    assert make_lines(Progress((rank(2),)), Paper(width=80), 12)[1].startswith("rank")
    assert make_lines(Progress(ranks), Paper(width=80), 5)[1].startswith("rank")  # no room for it
    assert width_of(make_lines(Progress(ranks), Paper(width=50), 12)[1]) <= 50


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
    assert title(63, 15, since_s=60.0).endswith("01:03 · restart 1 · no collective for 60 s")
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
        f"ddpdoctor: --live is not shown: the terminal does not support cursor movement (TERM={term})\n"
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
    assert "cannot be combined with --no-watch" in capsys.readouterr().err


def test_a_phase_that_all_ranks_are_in_is_in_the_title_and_else_in_their_rows() -> None:
    ranks = [rank(0, named="evaluation, epoch 3"), rank(1, named="evaluation, epoch 3", **LATE)]
    lines = make_lines(Progress(tuple(ranks)), Paper(width=100), 12, title=["ddpdoctor", "2 ranks"])
    assert lines[0].startswith("── ddpdoctor · 2 ranks · evaluation, epoch 3 ───")
    assert "evaluation" not in "".join(lines[1:])
    ranks[1] = rank(1, named="checkpoint", **LATE)
    ranks.append(rank(2))
    lines = make_lines(Progress(tuple(ranks)), Paper(width=120), 12, title=["ddpdoctor", "3 ranks"])
    assert "evaluation" not in lines[0]
    assert "evaluation, epoch 3: in all_reduce 43 s" in lines[2]
    assert "checkpoint: outside 43 s" in lines[3]
    assert lines[4].split()[2:4] == ["in", "all_reduce"]
    assert [str(row.ranks) for row in fold(ranks, 2)[0]] == ["0"]
