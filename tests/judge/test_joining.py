"""What was read in the source joins what was seen in the job; what the job did not show is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.job import CrashRecord, ExceptionRecord
from ddpdoctor.judge import Finding, Where
from ddpdoctor.judge.source_lines import explain_mismatch, find_foreseen, join_source


def place(line: int, role: str, file: str = "train.py") -> Where:
    return Where(RankSet([0]), role, file, line, "main", f"line {line}")


LIVE = Finding("Ranks 0 wait.", where=(place(40, "culprit"), place(8, "victim")), code="COL002")
READ = Finding(
    "barrier at train.py:8 is called only where rank == 0.",
    where=(place(8, "culprit"), place(7, "condition")),
    code="COL002",
    severity="error",
    confidence="high",
)
FAILED = ExceptionRecord(
    1,
    "RuntimeError",
    "Connection closed\nmore",
    (Frame("t/c10d.py", 1, "f"), Frame("train.py", 8, "g")),
    rank=0,
)


def test_live_finding_gets_the_test_above_its_line() -> None:
    (joined,) = join_source([LIVE], [READ])
    assert [(each.line, each.role) for each in joined.where] == [
        (40, "culprit"),
        (8, "victim"),
        (7, "condition"),
    ]
    assert joined.evidence[-1].text == READ.message
    assert joined.evidence[-1].source == ("train.py", 8)


def test_a_stall_and_a_missing_call_are_one_defect() -> None:
    (joined,) = join_source([replace(LIVE, code="COL005")], [READ])
    assert len(joined.where) == 3


@pytest.mark.parametrize(
    "read",
    [
        replace(READ, where=(place(80, "culprit"),)),
        replace(READ, where=(place(8, "culprit", "other.py"),)),
        replace(READ, code="DAT002"),
    ],
)
def test_what_was_read_elsewhere_is_left_out(read: Finding) -> None:
    assert join_source([LIVE], [read]) == (LIVE,)
    assert join_source([], [read]) == ()


def test_finding_without_a_line_gets_the_only_one_of_its_code() -> None:
    bare = Finding("No epoch was set.", code="DAT002")
    read = replace(READ, code="DAT002")
    assert join_source([bare], [read])[0].where == READ.where
    assert join_source([bare], [read, read]) == (bare,)
    assert join_source([bare], [replace(read, where=())]) == (bare,)
    withdrawn = replace(bare, state="withdrawn")
    assert join_source([withdrawn], [read]) == (withdrawn,)


@pytest.mark.parametrize("more", [(place(8, "noticed"),), ()])
def test_line_that_makes_what_a_job_shows_elsewhere_comes_first(more: tuple[Where, ...]) -> None:
    live = replace(LIVE, ranks=RankSet([0, 1]), details={"made": "elsewhere"})
    read = replace(READ, where=(place(22, "culprit", "callbacks.py"), *more))
    (joined,) = join_source([live], [read])
    assert [(each.file, each.line, each.role) for each in joined.where] == [
        ("callbacks.py", 22, "culprit"),
        ("train.py", 40, "noticed"),
        ("train.py", 8, "victim"),
    ]
    assert joined.where[0].ranks == RankSet([0, 1])
    known = replace(live, details={})
    assert join_source([known], [read])[0].where == LIVE.where


def test_line_that_the_source_itself_names_as_the_cause_comes_first() -> None:
    live = replace(LIVE, ranks=RankSet([0, 1]))
    read = replace(READ, where=(place(64, "culprit"), place(40, "noticed")), details={"made": "elsewhere"})
    (joined,) = join_source([live], [read])
    assert [(each.line, each.role) for each in joined.where] == [
        (64, "culprit"),
        (40, "noticed"),
        (8, "victim"),
    ]
    assert join_source([live], [replace(read, where=read.where[:1])]) == (live,)


@pytest.mark.parametrize(
    "read",
    [
        [replace(READ, where=(place(22, "culprit"), place(91, "noticed")))],  # of another wrap
        [replace(READ, where=(place(line, "culprit"),)) for line in (22, 23)],
        [replace(READ, where=(place(22, "culprit"),), code="DAT002")],
    ],
)
def test_line_of_something_else_is_not_what_makes_it(read: list[Finding]) -> None:
    live = replace(LIVE, details={"made": "elsewhere"})
    assert join_source([live], read) == (live,)


def test_failure_that_nothing_explains_is_what_was_read_of_its_line() -> None:
    found = find_foreseen([FAILED], [READ])
    assert found is not None
    assert (found.code, found.confidence, list(found.victims)) == ("COL002", "medium", [0])
    assert found.evidence[-1].text == "failed there with RuntimeError: Connection closed"


@pytest.mark.parametrize(
    ("failed", "read"),
    [
        (replace(FAILED, frames=(Frame("train.py", 7, "g"),)), READ),
        (replace(FAILED, rank=None), READ),
        (FAILED, replace(READ, severity="warning")),
        (FAILED, replace(READ, code="DAT001")),
    ],
)
def test_failure_elsewhere_or_doubt_explains_nothing(failed: ExceptionRecord, read: Finding) -> None:
    assert find_foreseen([failed], [read]) is None


MISMATCH = Finding(
    "Rank 0 failed first: ranks issued mismatched collectives.",
    ranks=RankSet([0]),
    where=(place(6, "culprit"), Where(RankSet([1, 2]), "victim", "train.py", 30, "main", "line 30")),
    code="COL003",
    severity="error",
    confidence="medium",
    details={"got": "216", "side": "unknown"},
    decisive=True,
)
INSIDE = CrashRecord(7, "Aborted", (Frame("train.py", 6, "f"), Frame("train.py", 8, "g")), rank=0)
LOST = [
    ExceptionRecord(pid, "RuntimeError", "Connection closed", (Frame("train.py", 30, "g"),), rank=pid)
    for pid in (1, 2)
]


def test_a_mismatch_inside_of_a_call_that_only_some_ranks_reach_is_that_call() -> None:
    found = explain_mismatch(MISMATCH, [INSIDE, *LOST], [replace(READ, severity="warning")])
    assert (found.code, str(found.ranks), str(found.victims)) == ("COL002", "0", "1-2")
    assert found.message.startswith("barrier at train.py:8 is called only where rank == 0. There")
    assert (found.confidence, found.severity, found.decisive) == ("high", "error", True)
    assert [(each.line, str(each.ranks)) for each in found.where] == [
        (8, "0"),
        (7, "0"),
        (6, "0"),
        (30, "1-2"),
    ]


@pytest.mark.parametrize(
    ("live", "stacks", "read"),
    [
        (MISMATCH, [INSIDE], READ),  # of the others nothing is known
        (MISMATCH, LOST, READ),  # no rank was there
        (MISMATCH, [INSIDE, *LOST], replace(READ, where=(place(8, "culprit"),))),
        (MISMATCH, [INSIDE, *LOST], replace(READ, code="DAT001")),
        (replace(MISMATCH, details={"odd": [1]}), [INSIDE, *LOST], READ),
    ],
)
def test_a_mismatch_that_the_source_does_not_explain_stays(
    live: Finding, stacks: list[ExceptionRecord | CrashRecord], read: Finding
) -> None:
    assert explain_mismatch(live, stacks, [read]) is live
