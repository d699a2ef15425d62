"""Lines of ours below the output of a job on one terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from ddpdoctor.watch.view.screen import Boundary, Screen
from tests.watch.launching import LIMIT_S, wait_for
from tests.watch.terminals import Terminal

SEQUENCES = [
    b"plain text\r\n",
    "ein Täst, 日本, 🙂 and more".encode(),
    b"\x1b[31mred\x1b[0m and \x1b[1;32mgreen\x1b[m",
    b"\x1b]0;a title\x07 text \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    b"\x1b(B\x1b)0\x1b7\x1b8\x1bM",
    b"\x1bP1$r0m\x1b\\after",
]


MARK = b"\x06"


class Pair:
    """A pseudo-terminal, a screen on it, and what a person sees there."""

    def __init__(self, columns: int = 40, rows: int = 12) -> None:
        self.master, self.slave = pty.openpty()
        self.terminal = Terminal(columns, rows)
        self.screen = Screen(self.slave)
        self.resize(columns, rows)
        self.raw = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.terminal.resize(columns, rows)

    def write(self, data: bytes) -> None:
        """Write as the job, through the relay."""
        with self.screen.turn(data):
            os.write(self.slave, data)
        self.read()

    def draw(self, *lines: str, force: bool = False) -> bool:
        done = self.screen.draw(lines, force=force)
        self.read()
        return done

    def read(self) -> None:
        """Show all that was written so far; the mark says where that ends, but what another process writes may follow."""
        os.write(self.slave, MARK)
        data = b""
        while MARK not in data:
            data += os.read(self.master, 1 << 16)
        data = data.replace(MARK, b"")
        self.raw += data
        self.terminal.feed(data)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.screen.close()
    os.close(made.slave)
    os.close(made.master)


def test_lines_stand_at_the_bottom_and_the_output_scrolls_above(pair: Pair) -> None:
    for number in range(30):
        pair.write(b"line %d\n" % number)
        assert pair.draw("── view ──", f"seen {number}")
        assert pair.terminal.lines[-2:] == ["── view ──", f"seen {number}"]
    assert pair.terminal.history == "\n".join(f"line {number}" for number in range(30))


def test_a_line_that_is_half_finished_goes_on_where_it_was(pair: Pair) -> None:
    pair.write(b"first\n" * 20 + b"progress 10 %")
    pair.draw("view")
    pair.write(b", 20 %")
    pair.draw("view", "grows", "a lot")
    pair.write(b"\rprogress 30")
    pair.draw("shrinks")
    pair.write(b" %, done\nnext")
    assert pair.terminal.lines[-5:] == ["first", "progress 30 %, done", "next", "", "shrinks"]
    assert pair.terminal.history.count("first") == 20


def test_closing_leaves_what_the_job_alone_would_have_left(pair: Pair) -> None:
    alone = Terminal(40, 12)
    for number in range(25):
        text = b"line %d\n" % number if number % 3 else b"\rbar %d" % number
        pair.write(text)
        pair.draw(*["view"] * (1 + number % 4))
        alone.feed(text.replace(b"\n", b"\r\n"))
    pair.screen.close()
    pair.read()
    assert pair.terminal.margins == (0, 11)
    assert pair.terminal.history == alone.history
    assert "view" not in pair.terminal.history
    pair.write(b" and on\nafter\n")
    assert pair.terminal.history.splitlines()[-2:] == ["bar 24 and on", "after"]
    assert pair.draw("never again")
    assert "never" not in pair.terminal.text


def test_nothing_is_drawn_in_the_middle_of_a_character_or_a_sequence(pair: Pair) -> None:
    pair.write(b"Gr" + "ü".encode()[:1])
    assert not pair.draw("view")
    pair.write("ü".encode()[1:] + b"n \x1b[3")
    assert not pair.draw("view")
    pair.write(b"1mred")
    assert pair.draw("view")
    assert pair.terminal.lines[0] == "Grün red"


def test_a_sequence_that_never_ends_is_given_up(pair: Pair) -> None:
    pair.write(b"binary \x1b[12")
    assert not pair.draw("view")
    assert pair.draw("view", force=True)
    assert b"\x18\x1b" in pair.raw[pair.raw.index(b"binary") :]


@pytest.mark.parametrize("data", SEQUENCES)
def test_boundaries_are_the_same_however_the_bytes_come(data: bytes) -> None:
    single = Boundary()
    for cut in range(1, len(data) + 1):
        single.pass_on(data[cut - 1 : cut])
        whole = Boundary()
        whole.pass_on(data[:cut])
        assert single.clean == whole.clean, data[:cut]
    assert single.clean


def test_boundaries_lie_between_characters_and_sequences() -> None:
    def cuts(data: bytes) -> list[int]:
        found = []
        for cut in range(len(data) + 1):
            boundary = Boundary()
            boundary.pass_on(data[:cut])
            found += [cut] if boundary.clean else []
        return found

    assert cuts("aé日🙂".encode()) == [0, 1, 3, 6, 10]
    assert cuts(b"a\x1b[1;3mb") == [0, 1, 7, 8]
    assert cuts(b"\x1b]0;ti\x07b") == [0, 7, 8]
    assert cuts(b"\x1b]8;;x\x1b\\b") == [0, 8, 9]
    assert cuts(b"\x1b(Bb") == [0, 3, 4]


def test_a_long_string_is_remembered_by_its_beginning_only() -> None:
    boundary = Boundary()
    boundary.pass_on(b"\x1b]1337;File=" + b"x" * 100_000)
    for _ in range(3):
        boundary.pass_on(b"y" * 100_000)
        assert not boundary.clean
        assert len(boundary._pending) < 1000
    boundary.pass_on(b"\x07")
    assert boundary.clean


@pytest.mark.parametrize("reset", [b"\x1bc", b"\x1b[r"])
def test_a_job_that_resets_the_terminal_scrolls_above_the_lines_again(pair: Pair, reset: bytes) -> None:
    pair.write(b"before\n" * 30)
    pair.draw("view")
    pair.write(reset[:1])
    pair.write(reset[1:] + b"\n" * 20)
    pair.draw("view")
    pair.write(b"after\n" * 30)
    assert pair.terminal.lines[-3:] == ["after", "", "view"]


def test_a_job_that_keeps_lines_at_the_bottom_itself_is_left_alone(pair: Pair) -> None:
    pair.draw("view")
    pair.write(b"\x1b[1;9r\x1b[11;1Hits own")
    assert pair.draw("view")
    assert "view" not in pair.terminal.text
    assert (pair.terminal.lines[10], pair.terminal.margins) == ("its own", (0, 8))
    pair.write(b"\x1b[r")
    pair.draw("view")
    assert pair.terminal.lines[-1] == "view"


def test_a_place_that_the_job_has_saved_is_kept_for_it(pair: Pair) -> None:
    pair.write(b"here\x1b7\nbelow")
    assert not pair.draw("view")
    pair.write(b"\x1b8, and on\n")
    assert pair.draw("view")
    assert pair.terminal.lines[:2] == ["here, and on", "below"]


def test_another_screen_of_the_terminal_is_left_alone(pair: Pair) -> None:
    pair.draw("view")
    pair.write(b"\x1b[?1049h")
    assert "view" not in pair.terminal.text
    assert pair.terminal.margins == (0, 11)
    assert pair.draw("view")
    assert "view" not in pair.terminal.text
    pair.write(b"\x1b[?1049l")
    pair.draw("view")
    assert pair.terminal.lines[-1] == "view"


@pytest.mark.parametrize(("columns", "rows"), [(60, 20), (40, 8), (30, 12), (25, 6)])
def test_the_lines_follow_the_size_of_the_terminal(pair: Pair, columns: int, rows: int) -> None:
    for number in range(15):
        pair.write(b"line %d\n" % number)
    pair.draw("rule", "view")
    pair.resize(columns, rows)
    pair.draw("rule", "view")
    pair.write(b"line 15\nline 16\n")
    assert pair.terminal.lines[-2:] == ["rule", "view"]
    assert pair.terminal.margins == (0, rows - 3)
    seen = [line for line in pair.terminal.history.splitlines() if line]
    assert seen == [f"line {number}" for number in range(17)]


def test_a_pause_gives_the_terminal_to_others(pair: Pair) -> None:
    pair.write(b"job\n")
    pair.draw("view")
    pair.screen.pause()
    assert pair.draw("view")
    assert (pair.terminal.text, pair.terminal.margins) == ("job", (0, 11))
    pair.screen.resume()
    pair.draw("view")
    assert pair.terminal.lines[-1] == "view"


def test_a_defect_of_ours_does_not_keep_the_output_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise ValueError("a defect")

    pair.draw("view")
    monkeypatch.setattr(Boundary, "switches", fail)
    monkeypatch.setattr(Boundary, "pass_on", fail)
    pair.write(b"comes\n")
    pair.write(b"all the same\n")
    assert pair.terminal.lines[:2] == ["comes", "all the same"]


def test_numbers_without_end_are_passed_over() -> None:
    boundary = Boundary()
    boundary.pass_on(b"\x1b[" + b"1" * 65536 + b"r")
    assert (boundary.clean, boundary.elsewhere) == (True, False)


def test_a_terminal_that_was_stopped_is_not_waited_for(pair: Pair) -> None:
    termios.tcflow(pair.slave, termios.TCOOFF)
    assert not pair.screen.draw(["view"])
    assert not pair.screen.draw(["view"], force=True)
    termios.tcflow(pair.slave, termios.TCOON)
    assert pair.draw("view")


def test_a_terminal_that_is_gone_is_an_error_once_and_closing_none() -> None:
    made = Pair()
    made.draw("view")
    os.close(made.master)
    with pytest.raises(OSError, match=r"\[Errno"):
        made.screen.draw(["view", "more"], force=True)
    made.screen.close()
    os.close(made.slave)


KILLED = """
import sys, time
from ddpdoctor.watch.view.screen import Screen
print("job", flush=True)
screen = Screen(1)
screen.draw(["rule", "view"])
time.sleep(300)
"""


def test_the_terminal_is_put_right_when_we_are_killed() -> None:
    made = Pair()
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=made.slave, start_new_session=True)
    try:

        def shows(text: str) -> bool:
            made.read()
            return text in made.terminal.text

        wait_for(lambda: shows("view"), "the view came")
        assert made.terminal.margins == (0, 9)
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        wait_for(lambda: not shows("view"), "the view went")
        assert (made.terminal.text, made.terminal.margins) == ("job", (0, 11))
    finally:
        process.kill()
        process.wait()
        os.close(made.slave)
        os.close(made.master)
