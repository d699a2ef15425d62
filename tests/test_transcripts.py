"""What the pages show as the output of a command is what that command prints.

A transcript is a block ```` ```console ```` whose first line is a demonstration, or a command in a folder of the repository. Lines of
"…" leave something out; durations and counters are not compared.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.trial import find_obstacle
from tests.faults.truth import load_truth

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"^```console\n\$ ((?:ddpdoctor demo \S|ddpdoctor analyze tests/|cd tests/).*)\n((?:.*\n)*?)```$", re.M
)
QUICK = ("ddpdoctor demo incident", "ddpdoctor analyze ")
"""These launch no job; the others are run with the long tests."""
MARGIN = re.compile(r", \S+ \S+ before any other rank")
"""Said only where the others had noticed something before the agent stopped them."""
VARIES = re.compile(
    r"\d+(\.\d+)? (ms|s|min|h|[GM]iB)\b|#\d+|\d+\.\d+|\d+%|/tmp/\S+|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d"
)
LIMIT_S = 250


def transcripts() -> dict[str, list[tuple[str, str]]]:
    """Command -> (page, what it shows)."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for page in sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]):
        for command, shown in BLOCK.findall(page.read_text(encoding="utf-8")):
            found[command].append((str(page.relative_to(ROOT)), shown))
    return found


def plain(text: str) -> str:
    """Return text without what differs from run to run: numbers, and where lines are broken because of them."""
    return " ".join(VARIES.sub("#", MARGIN.sub("", " ".join(text.split()))).split())


def pieces(shown: str) -> list[str]:
    """Return the parts of a transcript between its lines of dots."""
    return [part for each in re.split(r"^\s*…\s*$", shown, flags=re.MULTILINE) if (part := plain(each))]


@pytest.fixture
def scratch() -> Iterator[str]:
    """A folder for temporary files that demonstrations leave; its name is short, since sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-pages-", ignore_cleanup_errors=True) as name:
        yield name


@pytest.fixture
def clone(tmp_path: Path, scratch: str) -> Path:
    """A folder with the parts of the repository that commands name, and `ddpdoctor` on the path."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "ddpdoctor"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ddpdoctor "$@"\n')
    command.chmod(0o755)
    (tmp_path / "tests" / "faults" / "cases").mkdir(parents=True)
    (tmp_path / "scratch").symlink_to(scratch)
    (tmp_path / "tests" / "evidence").symlink_to(ROOT / "tests" / "evidence")
    return tmp_path


def run(command: str, clone: Path) -> str:
    """Run a command of a page and return what it prints."""
    if case := re.match(r"cd (tests/faults/cases/\S+)", command):
        if obstacle := find_obstacle(load_truth(ROOT / case[1])):
            pytest.skip(obstacle)
        shutil.copytree(ROOT / case[1], clone / case[1])
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTEST"))}
    path = f"{clone / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"COLUMNS": "80", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=clone,
        env={**environment, **settings, "PATH": path, "TMPDIR": str((clone / "scratch").resolve())},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.stdout + done.stderr


def cases() -> list[object]:
    return [
        pytest.param(command, id=command, marks=() if command.startswith(QUICK) else pytest.mark.long)
        for command in sorted(transcripts())
    ]


@pytest.mark.parametrize("command", cases())
def test_a_command_prints_what_the_pages_show(command: str, clone: Path) -> None:
    printed = plain(run(command, clone))
    for page, shown in transcripts()[command]:
        place = 0
        for piece in pieces(shown):
            found = printed.find(piece, place)
            assert found >= 0, (
                f"{page}: not printed, or not in this order: {piece}\n\nprinted: {printed[place:]}"
            )
            place = found + len(piece)


def test_pages_have_transcripts() -> None:
    pages = {page for shown in transcripts().values() for page, _ in shown}
    symptoms = {f"docs/symptoms/{file.name}" for file in (ROOT / "docs" / "symptoms").glob("*.md")}
    assert symptoms - pages == {"docs/symptoms/README.md"}
    assert "README.md" in pages


def test_a_transcript_that_is_not_printed_is_found(clone: Path) -> None:
    printed = plain(run("echo took 3.1 s, rank 1 failed", clone))
    assert pieces("took 9 s, rank 1 failed\n…\n") == [printed]
    assert pieces("took 9 s, rank 2 failed\n") != [printed]
