from __future__ import annotations

import io
import sys

import pytest

from ddpdoctor.cli.output.waiting import SilentProgress, TerminalProgress, make_progress


class Terminal(io.StringIO):
    """Looks like a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_no_terminal_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_progress(io.StringIO()), SilentProgress)
    assert isinstance(make_progress(None), SilentProgress)
    assert isinstance(make_progress(Terminal(), quiet=True), SilentProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress(Terminal()), SilentProgress)


def test_silent_progress_takes_everything(capsys: pytest.CaptureFixture[str]) -> None:
    progress = SilentProgress()
    progress.stage("ddp", 30)
    progress.note("x")
    progress.close()
    assert capsys.readouterr() == ("", "")


def test_terminal_shows_stage_limit_and_note_and_clears_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream, stdout = Terminal(), sys.stdout
    progress = make_progress(stream)
    assert isinstance(progress, TerminalProgress)
    progress.stage("rendezvous", 30.0)
    progress.note("waiting for 2 of 4 ranks \x1b]0;evil\x07")
    progress.refresh()
    shown = stream.getvalue()
    assert "rendezvous (limit 30 s): waiting for 2 of 4 ranks" in shown
    assert "evil\x07" not in shown
    progress.close()
    progress.close()
    assert stream.getvalue().endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))
    assert sys.stdout is stdout
