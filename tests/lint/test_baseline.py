"""Findings that were there before do not count, wherever the lines have gone; what is gone is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpdoctor.cli.arguments.parsing import BadValue
from ddpdoctor.cli.exclusions import parse_file_rule
from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.sources import SourceFile
from ddpdoctor.judge.finding import Finding, Where
from ddpdoctor.judge.fingerprint import fingerprint, number_fingerprints
from ddpdoctor.judge.suppression import Suppressor
from ddpdoctor.report.baseline import read_baseline, write_baseline
from ddpdoctor.source.files.patterns import compile_paths

NAMES = {"COL002": "collective-missing", "COL006": "group-mismatch"}


def find(line: int, source: str = "dist.barrier()", file: str = "train.py", code: str = "COL002") -> Finding:
    place = Where(RankSet(), "culprit", file, line, "main", source, column=5)
    return Finding(f"barrier at {file}:{line}", where=(place,), code=code, severity="error")


def review(before: list[Finding], after: list[Finding], *files: str) -> tuple[list[str], list[str]]:
    sources = [SourceFile(name) for name in files or ("train.py",)]
    suppressor = Suppressor(sources, NAMES, baseline=read_baseline(write_baseline(before)))
    states = [suppressor.review(each).state for each in after]
    return states, [remark.text for remark in suppressor.remarks(NAMES)]


def test_finding_is_known_by_what_it_is_and_not_by_its_line() -> None:
    assert review([find(8)], [find(80, "dist.barrier( )".replace("( )", "()"))]) == (["suppressed"], [])
    assert fingerprint(find(8)) == fingerprint(find(9))
    others = [find(8, "dist.barrier(group)"), find(8, file="b.py"), find(8, code="COL006")]
    assert len({fingerprint(each) for each in [find(8), *others]}) == 4


def test_one_more_of_those_that_are_alike_counts() -> None:
    assert review([find(1), find(2)], [find(1), find(2), find(3)])[0] == [
        "suppressed",
        "suppressed",
        "active",
    ]
    marks = number_fingerprints([find(1), find(2), find(3, "x")])
    assert len(set(marks)) == 3
    assert marks[1] == f"{marks[0]}-2"


def test_entry_that_is_not_found_any_more_is_told_where_the_file_was_read() -> None:
    states, remarks = review([find(1), find(2), find(3, file="b.py")], [find(1)])
    assert states == ["suppressed"]
    assert len(remarks) == 1
    assert "COL002, which is no longer found: dist.barrier()" in remarks[0]


def test_baseline_is_sorted_and_holds_only_what_counts() -> None:
    hidden = Finding("x", where=find(1).where, code="COL002", state="suppressed")
    text = write_baseline([find(9, file="b.py"), find(1), hidden, find(2)])
    rows = json.loads(text)["findings"]
    assert [(row["file"], row["count"]) for row in rows] == [("b.py", 1), ("train.py", 2)]
    assert text == write_baseline([find(5), find(9, file="b.py"), find(1)])


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "[" * 100_000, '{"schema": "ddpdoctor.report"}',
        '{"schema": "ddpdoctor.baseline", "version": 2, "findings": []}',
        '{"schema": "ddpdoctor.baseline", "version": 1, "findings": {}}',
        '{"schema": "ddpdoctor.baseline", "version": 1, "findings": [1]}',
        '{"schema": "ddpdoctor.baseline", "version": 1, "findings": [{"count": true}]}',
        '{"schema": "ddpdoctor.baseline", "version": 1, "findings": [{"count": 1, "code": "COL002"}]}',
    ],
)  # fmt: skip
def test_what_is_no_baseline_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|baseline|damaged"):
        read_baseline(text)


@pytest.mark.parametrize(
    ("pattern", "name", "meant"),
    [
        ("build", "a/build/x.py", True),
        ("*_test.py", "a/b/x_test.py", True),
        ("examples/old", "examples/old/x.py", True),
        ("examples/old", "a/examples/old/x.py", False),
        ("examples/**/old.py", "examples/a/b/old.py", True),
        ("./a/*.py", "a/x.py", True),
        ("a/*.py", "a/b/x.py", False),
        ("build", "rebuild/x.py", False),
    ],
)
def test_patterns_of_paths(
    pattern: str, name: str, meant: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert compile_paths([pattern], [tmp_path])(name) is meant


def test_rule_for_files_has_a_pattern_and_codes() -> None:
    assert parse_file_rule("a=b/*=COL002, COL006") == ("a=b/*", ["COL002", "COL006"])
    for text in ("COL002", "=COL002", "a=", "a= ,"):
        with pytest.raises(BadValue):
            parse_file_rule(text)
