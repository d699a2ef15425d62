"""Paths, lines and last words as they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.evidence import Frame, RankSet, StackClass
from ddpdoctor.launch.traces import keep_last_words, keep_stacks, shorten_path


def test_paths_are_relative_below_the_working_directory_and_without_the_user_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")
    assert shorten_path(str(tmp_path / "pkg" / "net.py")) == "pkg/net.py"
    assert shorten_path("/home/ann/env/lib/x.py") == "~/env/lib/x.py"
    assert shorten_path("/opt/x.py") == "/opt/x.py"
    assert shorten_path("<frozen importlib>") == "<frozen importlib>"


def test_stacks_keep_the_text_of_the_users_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("import time\ntime.sleep(9)\n")
    frames = (Frame(str(tmp_path / "net.py"), 2, "wait"), Frame("/opt/lib.py", 3, "call"))
    (kept,) = keep_stacks([StackClass(RankSet([1]), frames, "S")])
    assert kept.frames == (Frame("net.py", 2, "wait", "time.sleep(9)"), Frame("/opt/lib.py", 3, "call"))
    assert (kept.ranks, kept.state) == (RankSet([1]), "S")


def test_last_words_hold_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    assert keep_last_words(path) is None
    path.write_text("login with password=hunter2 failed\n")
    assert keep_last_words(path) == "login with password=*** failed"
