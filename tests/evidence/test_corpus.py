"""The corpus of NCCL incidents has its form, the comparison is right on made-up reports, and the scores do not fall."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.judge.finding import CONFIDENCES
from ddpdoctor.plugins import load_plugins
from tests.evidence.corpus import FACTS, FOLDER, HALVES, VERDICTS, Case, load_all
from tests.evidence.score import Score, analyze, make_section, score_report, summarise, try_case

CASES = load_all()
CODES = set(load_plugins().checks.pages)
FLOOR = {"seen": 0.97, "unseen": 0.79}
"""The least share of right cases in each half; raised as the rules get better, never lowered."""
SAMPLE = (
    "ecc-accelerate",
    "shm-posix-fallocate",
    "healthy-should-dump-at-shutdown",
    "gpu-fell-off-without-xid",
    "store-barrier-seven-of-eight",
    "save-gathers-other-sizes",
    "pxb-hang-with-acs",
    "healthy-memlock-no-infiniband",
)


def test_there_are_enough_of_each_kind() -> None:
    kinds = {verdict: sum(case.verdict == verdict for case in CASES) for verdict in VERDICTS}
    assert len(CASES) >= 120
    assert min(kinds["healthy"], kinds["untold"]) >= 20
    assert {case.half for case in CASES} == set(HALVES)
    hashed = [case for case in CASES if not case.looked_at]
    assert 0.4 <= sum(case.half == "seen" for case in hashed) / len(hashed) <= 0.6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_has_its_form(case: Case) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", case.name)
    assert case.verdict in VERDICTS
    assert re.fullmatch(r"https://[\w./#~%-]+", case.source)
    assert case.title
    assert case.cause.endswith((".", ")"))
    assert CODES.issuperset(case.codes + case.misleading)
    assert not set(case.codes) & set(case.misleading)
    assert case.misleading
    assert case.verdict != "failed" or case.codes
    assert case.files
    assert all(path.stat().st_size for path in case.files)
    if case.decisive is not None:
        assert any(case.decisive in path.read_text(errors="replace") for path in case.files)


def test_every_folder_is_a_case() -> None:
    assert [path.name for path in sorted(FOLDER.iterdir())] == [case.name for case in CASES]
    assert not [path for case in CASES for path in case.folder.rglob(FACTS) if path.parent != case.folder]


def make_case(**facts: Any) -> Case:
    plain: dict[str, Any] = {
        "verdict": "failed",
        "codes": ("NET016",),
        "misleading": ("COL002",),
        "ranks": (2,),
    }
    return Case("a-case", Path(), "a title", "https://example.org", "a cause.", **{**plain, **facts})


def make_report(code: str | None, status: str = "problems", **finding: Any) -> dict[str, Any]:
    plain = {
        "role": "cause",
        "severity": "error",
        "state": "active",
        "confidence": "high",
        "ranks": [2],
        "code": code,
    }
    findings = [{**plain, "role": "consequence", "code": "ERR001"}] + ([{**plain, **finding}] if code else [])
    return {"verdict": {"status": status}, "findings": findings, "seen": ["NET/IB : Got completion"]}


@pytest.mark.parametrize(
    ("case", "report", "right", "place"),
    [
        (make_case(), make_report("NET016"), True, True),
        (make_case(), make_report("NET016", ranks=[3]), True, False),
        (
            make_case(ranks=None, hosts=("node-b",)),
            make_report("NET016", message="node-b lost its link"),
            True,
            True,
        ),
        (make_case(ranks=None), make_report("NET016"), True, None),
        (make_case(), make_report("COL002"), False, None),
        (make_case(), make_report("NET016", severity="info"), False, None),
        (make_case(), make_report(None, "unknown"), False, None),
        (make_case(), None, False, None),
        (make_case(verdict="untold"), make_report(None, "unknown"), True, None),
        (make_case(verdict="untold"), make_report(None, "healthy"), False, None),
        (make_case(codes=()), make_report(None, "unknown"), True, None),
        (make_case(verdict="healthy", codes=()), make_report(None, "healthy"), True, None),
        (make_case(verdict="healthy", codes=()), make_report(None, "unknown"), True, None),
        (make_case(verdict="healthy", codes=()), make_report("NET016"), False, None),
    ],
)
def test_reports_are_compared_with_the_truth(
    case: Case, report: dict[str, Any] | None, right: bool, place: bool | None
) -> None:
    score = score_report(case, report)
    assert (score.right, score.place) == (right, place)


def test_what_sends_the_wrong_way_and_what_is_shown_are_counted() -> None:
    wrong = score_report(make_case(decisive="Got completion"), make_report("COL002"))
    assert (wrong.misleads_surely, wrong.shown, wrong.abstained) == (True, True, False)
    unsure = score_report(make_case(decisive="port error"), make_report("COL002", confidence="medium"))
    assert (unsure.misleads, unsure.misleads_surely, unsure.shown) == (True, False, False)
    assert "medium" in CONFIDENCES
    silent = score_report(make_case(), make_report(None, "healthy"))
    assert (silent.healthy_on_failed, silent.abstained) == (True, False)
    scores = [wrong, unsure, silent]
    column = 1 + HALVES.index(wrong.case.half)
    table = {row[0]: row[column] for row in summarise(scores)}
    assert table["misleading at high confidence"] == "1 of 3 (33%)"
    assert table["called healthy: failed and untold"] == "1 of 3 (33%)"


def test_single_cases_of_the_unseen_half_are_not_on_the_page() -> None:
    scores = [Score(case, "unknown", None, None, False, None, None) for case in CASES]
    page = make_section(scores)
    assert all((f"`{case.name}`" in page) == (case.half == "seen") for case in CASES)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_case_is_read_as_a_user_would(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    report = analyze(case)
    assert report is not None
    score = score_report(case, report)
    assert (score.right, score.misleads, score.healthy_on_failed) == (True, False, False)


@pytest.mark.long
@pytest.mark.parametrize("half", HALVES)
def test_the_scores_do_not_fall(half: str) -> None:
    scores = [try_case(case) for case in CASES if case.half == half]
    assert sum(score.right for score in scores) / len(scores) >= FLOOR[half]
    assert not [score.case.name for score in scores if score.healthy_on_failed]
