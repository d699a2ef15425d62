"""What tests of launch files share."""

from __future__ import annotations

from ddpdoctor.judge import Finding
from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.gather import judge_launches
from ddpdoctor.source.launching.launch_files import LaunchFile, parse_launch_file
from tests.lint.judging import RULES, judge


def read_launch(text: str, name: str = "job.sh") -> LaunchFile:
    """Return a launch file as it is read."""
    return parse_launch_file(text.encode(), name)


def lint_launch(
    text: str, name: str = "job.sh", *, questions: bool = False, scripts: dict[str, str] | None = None
) -> list[Finding]:
    """Return the findings of a launch file, read together with scripts; or its questions."""
    read = [parse_script(source.encode(), each) for each, source in (scripts or {}).items()]
    rows = judge_launches([read_launch(text, name)], read, RULES)
    assert [part for row in rows for part in row.skipped] == []
    return judge(rows, questions=questions)


def places(found: list[Finding]) -> list[tuple[str, int | None]]:
    """Return the code and the line of each finding."""
    return [(each.code, each.where[0].line) for each in found]


def marked(text: str) -> list[int]:
    """Return the lines that are marked with ``# here``, or the line after one that is marked ``# next``."""
    rows = text.splitlines()
    here = [number for number, line in enumerate(rows, 1) if "# here" in line]
    return here + [number + 1 for number, line in enumerate(rows, 1) if line.strip() == "# next"]
