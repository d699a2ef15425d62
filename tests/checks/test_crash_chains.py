"""Exceptions raised from others: the line is where it began, and what it was raised on as is reported too."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import ExceptionRecord
from ddpdoctor.judge import Finding
from tests.checks.jobs import Job, judge

LIBRARY = "/venv/lib/python3.11/site-packages/hydra/utils.py"
INNER = (Frame("data.py", 5, "get", "return table[label]"), Frame("train.py", 8, "step", "get(label)"))
WRAPS = (
    Frame("train.py", 10, "step", 'raise RuntimeError("no sample") from e'),
    Frame("train.py", 30, "main"),
)
STUMBLES = (Frame("train.py", 10, "step", "log(self.missing)"), Frame("train.py", 30, "main"))
BY_LIBRARY = (Frame(LIBRARY, 4, "call", "raise InstantiationError from e"), *WRAPS[1:])


def chained(outer: tuple[Frame, ...], *links: tuple[str, tuple[Frame, ...]]) -> Finding:
    chain = tuple(
        ExceptionRecord(0, "KeyError", f"'x{n}'", frames, link=link) for n, (link, frames) in enumerate(links)
    )
    job = Job(2).raises(1, "RuntimeError", "no sample", frames=outer, chain=chain).complains([0])
    findings, verdict, _ = judge(job)
    assert verdict.code == "ERR001"
    return findings[0]


@pytest.mark.parametrize(
    ("outer", "links", "line"),
    [
        (WRAPS, [("cause", INNER)], ("data.py", 5)),
        (WRAPS, [("context", INNER)], ("data.py", 5)),
        (BY_LIBRARY, [("cause", INNER)], ("data.py", 5)),
        (WRAPS, [("cause", WRAPS), ("cause", INNER)], ("data.py", 5)),
        (WRAPS, [("cause", (Frame(LIBRARY, 9, "get"),))], ("train.py", 10)),
        (WRAPS, [("cause", (Frame(LIBRARY, 9, "get"),)), ("cause", INNER)], ("data.py", 5)),
        (WRAPS, [("cause", (Frame("/usr/lib/python3.11/json/decoder.py", 9, "decode"), *INNER))], ("data.py", 5)),
        (STUMBLES, [("context", INNER)], ("train.py", 10)),
        (STUMBLES, [("cause", INNER)], ("data.py", 5)),
        (BY_LIBRARY, [("context", INNER)], ("train.py", 30)),
        (WRAPS, [("member", INNER)], ("data.py", 5)),
        (WRAPS, [("member", WRAPS), ("cause", INNER)], ("data.py", 5)),
        (WRAPS, [], ("train.py", 10)),
    ],
)  # fmt: skip
def test_the_line_is_where_it_began(
    outer: tuple[Frame, ...], links: list[tuple[str, tuple[Frame, ...]]], line: tuple[str, int]
) -> None:
    found = chained(outer, *links)
    assert (found.where[0].file, found.where[0].line, found.where[0].role) == (*line, "culprit")


def test_what_was_raised_and_what_it_became_are_both_told() -> None:
    found = chained(WRAPS, ("cause", INNER))
    assert found.message == (
        "Rank 1 failed first, 0.40 s before any other rank, at data.py:5 in get: KeyError: 'x0', re-raised as RuntimeError: no sample at train.py:10."
    )
    assert [item.text for item in found.evidence][:2] == [
        "RuntimeError: no sample",
        "raised from KeyError: 'x0'",
    ]
    assert ("train.py", 10) in [(place.file, place.line) for place in found.where]


def test_an_error_of_a_handler_is_told_with_its_own_line_alone() -> None:
    found = chained(STUMBLES, ("context", INNER))
    assert (
        found.message
        == "Rank 1 failed first, 0.40 s before any other rank, at train.py:10 in step: RuntimeError: no sample."
    )


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("/usr/lib/python3.11/os.py", "ENV001"),
        ("<frozen os>", "ENV001"),
        ("videos.py", "ERR001"),
        ("data/os.py", "ERR001"),
    ],
)
def test_a_missing_key_is_the_environments_only_where_python_looked_it_up(file: str, code: str) -> None:
    frames = (Frame(file, 679, "__getitem__"), Frame("train.py", 9, "main"))
    _, verdict, _ = judge(Job(2).raises(1, "KeyError", "'LOCAL_RANK'", frames=frames).complains([0]))
    assert verdict.code == code
