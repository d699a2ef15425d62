"""Commands to paste."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddpdoctor.text.shell import quote_words


@pytest.mark.parametrize(
    "words",
    [
        ["~/envs/x/bin/python", "-c", "raise SystemExit(7)"],
        ["~/with a blank/train.py"],
        ["~"],
        ["a~/b", "$HOME", "*"],
    ],
)
def test_a_shell_reads_the_words_that_were_meant(words: list[str], tmp_path: Path) -> None:
    command = f'printf "%s\\n" {quote_words(words)}'
    done = subprocess.run(
        ["sh", "-c", command], env={"HOME": "/home/me"}, capture_output=True, text=True, check=True
    )
    expected = [f"/home/me/{word[2:]}" if word.startswith("~/") else word for word in words]
    assert done.stdout.splitlines() == expected
