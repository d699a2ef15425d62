from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import Finding, Where
from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.github import SHOWN, GithubRenderer
from tests.report.extremes import sample_large, sample_many, sample_still, sample_suppressed
from tests.report.samples import SAMPLES, sample_healthy, sample_problems, sample_unknown

EVERYTHING: dict[str, Callable[[], Report]] = {
    **SAMPLES,
    "large": lambda: sample_large(64, 8),
    "many": lambda: sample_many(100),
    "suppressed": sample_suppressed,
}


@dataclass
class Command:
    name: str
    properties: dict[str, str]
    message: str


def read_line(line: str) -> Command | None:
    """Read a line as GitHub's runner does (actions/runner, ActionCommand.TryParseV2); None is a line of the log."""
    shown = line.lstrip()
    if not shown.startswith("::") or "::" not in shown[2:]:
        assert "##[" not in line, "the older form of commands, which the runner finds anywhere in a line"
        return None
    head, _, message = shown[2:].partition("::")
    name, _, rest = head.partition(" ")
    properties = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if equals and value.strip():
            properties[key.strip()] = unescape(value, (("%2C", ","), ("%3A", ":"), *DATA))
    return Command(name, properties, unescape(message, DATA))


DATA = (("%0A", "\n"), ("%0D", "\r"), ("%25", "%"))


def unescape(text: str, table: tuple[tuple[str, str], ...]) -> str:
    for code, character in table:
        text = text.replace(code, character)
    return text


def read(report: Report, options: RenderOptions | None = None) -> list[Command]:
    text = GithubRenderer().render(report, options or RenderOptions())
    text.encode("utf-8")
    assert len(text.splitlines()) == text.count("\n"), "a line that something else than a line feed breaks"
    return [command for command in map(read_line, text.splitlines()) if command is not None]


@pytest.mark.parametrize("name", EVERYTHING)
def test_nothing_but_annotations_comes_out(name: str) -> None:
    for command in read(EVERYTHING[name]()):
        assert command.name in ("error", "warning", "notice")
        assert set(command.properties) <= {"file", "line", "col", "title"}
        assert command.message


def test_annotation_has_place_title_and_fix() -> None:
    cause, follows = read(sample_problems())
    assert cause.name == "error"
    assert cause.properties == {
        "file": "models/reader.py",
        "line": "61",
        "title": "BKD011 stage-timed-out",
    }
    lines = cause.message.splitlines()
    assert lines[0].startswith("Ranks 2 and 3 wait in all_reduce (models/factory.py:88)")
    assert "fix: Give the socket a time-out, so that a silent server shows." in lines
    assert lines[-1] == "more: ddpdoctor explain BKD011"
    assert (follows.name, follows.properties) == (
        "notice",
        {"title": "ENV004 variables-differ (a consequence)"},
    )


def test_hostile_text_is_no_command_and_comes_through() -> None:
    evil = "a\n::set-output name=x::y\r\n::add-mask::z %0A,b:c ##[add-mask]q"
    finding = Finding(
        evil,
        code="ERR001",
        name="e,title=x::y",
        severity="error",
        where=(Where(RankSet(), "culprit", "x,line=9::y%.py", 3, column=2),),
    )
    text = GithubRenderer().render(replace(sample_healthy(), findings=(finding,)), RenderOptions())
    (command,) = [command for command in map(read_line, text.splitlines()) if command is not None]
    assert command.properties == {
        "file": "x,line=9::y%.py",
        "line": "3",
        "col": "2",
        "title": "ERR001 e,title=x::y",
    }
    assert command.message.startswith("a ::set-output name=x::y ::add-mask::z %0A,b:c ##[add-mask]q")


def test_silence_is_not_taken_for_health() -> None:
    (healthy, note) = read(sample_healthy())
    assert (healthy.name, healthy.message[:9], note.name) == ("notice", "healthy ·", "notice")
    (unknown,) = read(sample_unknown())
    assert (unknown.name, unknown.properties["title"]) == ("warning", "ddpdoctor: inconclusive")
    (still,) = read(sample_still())
    assert (still.properties["title"], still.message) == (
        "ddpdoctor: hang, root cause not determined",
        "Ranks 0-1 wait in all_reduce.",
    )
    (failed,) = read(SAMPLES["error"]())
    assert (failed.name, failed.message) == ("error", "all checks broke")


def test_files_are_named_from_the_top_of_the_checkout() -> None:
    options = RenderOptions(root="/builds/repo", directory="/builds/repo/training")
    assert read(sample_problems(), options)[0].properties["file"] == "training/models/reader.py"


def test_line_of_a_cell_is_told_in_words() -> None:
    place = Where(RankSet(), "culprit", "t.ipynb", 2, cell=3)
    finding = Finding("Bad.", code="COL002", name="x", severity="error", where=(place,))
    (command,) = read(replace(sample_healthy(), findings=(finding,)))
    assert "line" not in command.properties
    assert command.message.splitlines()[1] == "cell 3, line 2"


def test_remarks_stand_at_their_lines() -> None:
    verdict, first, second = read(sample_suppressed())
    assert verdict.message.startswith("healthy")
    assert first.properties == {"file": "src/a.py", "title": "ddpdoctor", "line": "7"}
    assert second.properties == {"file": "b.ipynb", "title": "ddpdoctor"}
    assert second.message == "cell 4: ignore[COL003] suppresses nothing; remove it"
    text = GithubRenderer().render(sample_suppressed(), RenderOptions())
    assert "ddpdoctor: 0 findings, suppressed 2 by baseline, 1 by comment; " in text


def test_no_more_annotations_than_github_keeps() -> None:
    text = GithubRenderer().render(sample_many(), RenderOptions())
    assert len(read(sample_many())) == SHOWN
    assert re.search(r"^ddpdoctor: 1,000 findings, 50 shown; 1 of 1 checks ran$", text, re.MULTILINE)
