"""What counts as found and as an alarm when cases are read, on made-up findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import Finding, Where
from tests.faults.reading import HEADING, Programs, Reading, judge_reading, make_section
from tests.faults.truth import Truth
from tests.parts import replace_part, take_parts

HEALTHY = Truth("right", Path(), "nothing is wrong", ("train.py",))
BROKEN = replace(HEALTHY, name="wrong", code="COL003", lines=(("train.py", 7),), also=("COL012",))
KNOWN = {"COL002", "COL012", "DAT001"}


def find(code: str, line: int = 1, severity: str = "warning") -> Finding:
    return Finding("…", where=(Where(RankSet(), "culprit", "train.py", line),), code=code, severity=severity)


@pytest.mark.parametrize(
    ("truth", "finding", "right", "alarms"),
    [
        (BROKEN, find("COL003"), ("COL003",), ()),
        (BROKEN, find("COL002", 7), ("COL002",), ()),
        (BROKEN, find("COL002", 8), (), ("COL002",)),
        (BROKEN, find("DAT001", 7), (), ("DAT001",)),
        (BROKEN, find("COL012"), (), ()),
        (HEALTHY, find("COL002", 7), (), ("COL002",)),
        (HEALTHY, find("COL002", 7, "info"), (), ()),
    ],
)
def test_findings_are_compared_with_the_truth(
    truth: Truth, finding: Finding, right: tuple[str, ...], alarms: tuple[str, ...]
) -> None:
    reading = judge_reading(truth, [finding], KNOWN)
    assert (reading.right, reading.alarms, reading.readable) == (right, alarms, False)


def test_section_counts_and_takes_the_place_of_an_older_one() -> None:
    section = make_section(
        [
            Reading(BROKEN, ("COL002",), ("DAT001",), True),
            Reading(BROKEN, (), (), True),
            Reading(HEALTHY, (), (), False),
        ],
        Programs(wrong=20, found=18, right=30, silent=28),
    )
    assert "* found 1 of 2 broken jobs that could be read" in section
    assert "* right findings 1 of 2 (precision)" in section
    assert "* alarms on 0 of 1 healthy jobs" in section
    assert (
        "found 18 of 20 wrong ones (recall), silent on 28 of 30 right ones; 18 of 20 of what it said"
        in section
    )
    page = replace_part("# Accuracy\n\nfirst\n", "## As read by `lint`\n\nold\n")
    assert replace_part(page, section) == f"# Accuracy\n\nfirst\n\n{section}"
    both = replace_part(replace_part(page, "## Others\n\nkept\n"), section)
    assert both == f"# Accuracy\n\nfirst\n\n{section}\n## Others\n\nkept\n"
    assert replace_part("# New\n" + take_parts(both, HEADING), section) == both.replace(
        "# Accuracy\n\nfirst", "# New"
    )
    assert page.count(HEADING) == 1
