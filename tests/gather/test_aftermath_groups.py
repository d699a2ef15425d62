"""Groups of exceptions in logs: Python prints them with a margin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.aftermath.logs import LogReader
from ddpdoctor.aftermath.tracebacks import read_traceback

PROGRAM = """
def load(n):
    return {}[n]  # line 3

def tasks(make):
    errors = []
    for n in (1, 2):
        try:
            load(n)
        except KeyError as error:
            try:
                raise ValueError(f"shard {n}") from error
            except ValueError as wrapped:
                errors.append(wrapped)
    raise make("two tasks", errors)
"""
PLAIN = PROGRAM + "\ntasks(ExceptionGroup)\n"
NESTED = (
    PROGRAM
    + "\ntasks(lambda text, errors: ExceptionGroup(text, [ExceptionGroup('inner', errors), OSError('z')]))\n"
)
CHAINED = (
    PROGRAM
    + "\ntry:\n    tasks(ExceptionGroup)\nexcept ExceptionGroup as error:\n    raise RuntimeError('epoch') from error\n"
)

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup is new in Python 3.11")


def printed(tmp_path: Path, source: str) -> str:
    (tmp_path / "train.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stderr


@pytest.mark.parametrize(
    ("source", "types"),
    [
        (PLAIN, ["KeyError", "ValueError", "ExceptionGroup"]),
        (NESTED, ["KeyError", "ValueError", "ExceptionGroup", "ExceptionGroup"]),
        (CHAINED, ["KeyError", "ValueError", "ExceptionGroup", "RuntimeError"]),
    ],
)
def test_the_first_member_and_what_it_came_from_are_read(
    tmp_path: Path, source: str, types: list[str]
) -> None:
    told = read_traceback(printed(tmp_path, source))
    assert told is not None
    assert [part.type for part in told.parts] == types
    assert (told.parts[0].frames[-1].line, told.parts[0].link) == (3, "cause")
    assert told.parts[1].link == "member"
    assert "two tasks" in " ".join(" ".join(part.message) for part in told.parts)


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "2026-01-02T03:04:05Z "])
def test_a_group_in_a_log_is_one_failure(tmp_path: Path, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in printed(tmp_path, NESTED).splitlines())
    reader = LogReader("train.log")
    reader.take(f"epoch 1\n{text}epoch 2\n".encode())
    (told,) = reader.finish().told
    assert [part.type for part in told.parts] == [
        "KeyError",
        "ValueError",
        "ExceptionGroup",
        "ExceptionGroup",
    ]
