from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from ddpdoctor.evidence import Absent, Evidence, PortProbe, RankSet
from ddpdoctor.judge import CannotLook, Check, CheckRow, Finding, NotApplicable, Registry, check, run_checks

Judge = Callable[[Evidence], Iterable[Finding]]


def make_check(
    judge: Judge,
    *,
    needs: tuple[str, ...] = (),
    severity: str = "warning",
    required: bool = True,
    source: str = "toy-dist",
) -> Check:
    def find_toy(evidence: Evidence) -> Iterable[Finding]:
        """A page."""
        return judge(evidence)

    declared = check(
        "X-toy-001",
        name="toy-broken",
        title="Toy",
        severity=severity,
        family="toys",
        needs=needs,
        since="1.0",
        id="toy.one",
        required=required,
    )(find_toy)
    registry = Registry()
    registry.source = source
    registry.add(declared)
    return registry.checks[0]


def run_one(judge: Judge, evidence: Evidence | None = None, **options: Any) -> tuple[CheckRow, list[Finding]]:
    rows, findings = run_checks([make_check(judge, **options)], evidence or Evidence(), limit_s=30)
    return rows[0], findings


def say(**fields: Any) -> Judge:
    return lambda evidence: [Finding("Broken.", **fields)]


def test_check_without_findings_passes() -> None:
    row, findings = run_one(lambda evidence: [])
    assert (row.status, row.reason, findings) == ("pass", None, [])
    assert row.required


def test_finding_is_completed_from_its_check() -> None:
    row, (found,) = run_one(say())
    assert (row.status, row.reason) == ("fail", "Broken.")
    assert (found.code, found.name, found.severity) == ("X-toy-001", "toy-broken", "warning")


def test_severity_may_be_lowered() -> None:
    row, (found,) = run_one(say(severity="info"))
    assert (row.status, row.reason, found.severity) == ("pass", None, "info")


def test_severity_may_not_be_raised() -> None:
    row, findings = run_one(say(severity="error"))
    assert (row.status, findings) == ("error", [])
    assert row.reason is not None
    assert "at most warning" in row.reason


def test_withdrawn_finding_does_not_fail_its_check() -> None:
    row, findings = run_one(say(state="withdrawn"))
    assert row.status == "pass"
    assert len(findings) == 1


def test_missing_evidence_makes_a_check_blind() -> None:
    evidence = Evidence(absent={"ports": Absent("stage was cut")})
    row, _ = run_one(say(), evidence, needs=("ports",))
    assert (row.status, row.reason) == ("unknown", "stage was cut")


def test_evidence_that_does_not_apply_skips_a_check() -> None:
    evidence = Evidence(absent={"ports": Absent("single node", applicable=False)})
    row, _ = run_one(say(), evidence, needs=("ports",))
    assert (row.status, row.reason) == ("skipped", "single node")


def test_evidence_of_some_nodes_is_judged_although_others_were_blind() -> None:
    evidence = Evidence(ports=(PortProbe(0, 1, "free"),), absent={"ports": Absent("no tool on node 1")})
    row, findings = run_one(say(), evidence, needs=("ports",))
    assert row.status == "fail"
    assert len(findings) == 1


def test_evidence_that_was_looked_for_and_is_empty_is_no_gap() -> None:
    row, _ = run_one(lambda evidence: [], needs=("ports", "launch", "extra"))
    assert row.status == "pass"


@pytest.mark.parametrize("kind", ["weather", "to_dict", "absent"])
def test_unknown_kind_of_evidence_is_an_error_of_the_check(kind: str) -> None:
    row, _ = run_one(say(), needs=(kind,))
    assert row.status == "error"
    assert row.reason == f"toy-dist: needs unknown evidence {kind!r}"


@pytest.mark.parametrize(
    ("problem", "status"), [(CannotLook("no links"), "unknown"), (NotApplicable("no GPU"), "skipped")]
)
def test_abstaining_check_says_why(problem: Exception, status: str) -> None:
    def abstain(evidence: Evidence) -> Iterator[Finding]:
        yield from judge_nothing()

    def judge_nothing() -> Iterable[Finding]:
        raise problem

    row, findings = run_one(abstain)
    assert (row.status, row.reason, findings) == (status, str(problem), [])


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (ValueError("boom"), "toy-dist: ValueError: boom"),
        (KeyError(), "toy-dist: KeyError"),
        (SystemExit(3), "toy-dist: SystemExit: 3"),
        (KeyboardInterrupt(), "toy-dist: KeyboardInterrupt"),
        (_Mute(), "toy-dist: _Mute"),
    ],
)
def test_exception_is_told_with_its_distribution(problem: BaseException, words: str) -> None:
    def fail(evidence: Evidence) -> Iterable[Finding]:
        raise problem

    row, findings = run_one(fail)
    assert (row.status, row.reason, findings) == ("error", words, [])


@pytest.mark.parametrize(
    "judge",
    [
        lambda evidence: None,
        lambda evidence: ["text"],
        say(code="NET001"),
        say(severity="fatal"),
        say(role="villain"),
        say(confidence="sure"),
        say(state="asleep"),
        say(ranks=[0, 1]),
        say(victims={2}),
        say(details={"when": object()}),
        say(details={"ranks": {1, 2}}),
    ],
    ids=[
        "none", "text", "foreign code", "severity", "role", "confidence", "state", "ranks", "victims",
        "object in details", "set in details",
    ],
)  # fmt: skip
def test_finding_that_cannot_be_shown_is_an_error_of_the_check(judge: Judge) -> None:
    row, findings = run_one(judge)
    assert (row.status, findings) == ("error", [])
    assert row.reason is not None
    assert row.reason.startswith("toy-dist: ")


def test_rank_sets_and_nan_in_details_can_be_shown() -> None:
    row, (found,) = run_one(say(details={"ranks": RankSet([0, 1]), "loss": float("nan")}))
    assert row.status == "fail"
    assert found.to_dict()["details"] == {"ranks": "0-1", "loss": "nan"}


def test_hanging_check_is_left_behind_and_others_run() -> None:
    release = threading.Event()

    def hang(evidence: Evidence) -> Iterable[Finding]:
        release.wait(60)
        return []

    try:
        rows, findings = run_checks([make_check(hang), make_check(say())], Evidence(), limit_s=0.2)
    finally:
        release.set()
    assert [row.status for row in rows] == ["error", "fail"]
    assert rows[0].reason == "toy-dist: no answer within 0.2 s"
    assert len(findings) == 1


def test_own_check_is_not_judged_by_the_wall_clock() -> None:
    """On a busy machine a pure function gets no processor for a long time: that is no fault of it."""

    def starve(evidence: Evidence) -> Iterable[Finding]:
        time.sleep(0.6)
        return []

    own, other = make_check(starve, source="ddpdoctor"), make_check(starve)
    rows, _ = run_checks([own, other], Evidence(), limit_s=0.1)
    assert [row.status for row in rows] == ["pass", "error"]


def test_own_check_that_never_ends_is_given_up() -> None:
    over = threading.Event()

    def spin(evidence: Evidence) -> Iterable[Finding]:
        while not over.is_set():
            pass
        return []

    try:
        rows, _ = run_checks(
            [make_check(spin, source="ddpdoctor"), make_check(say())], Evidence(), limit_s=0.3
        )
    finally:
        over.set()
    assert [row.status for row in rows] == ["error", "fail"]


def test_row_survives_being_saved() -> None:
    row, _ = run_one(say(), required=False)
    assert CheckRow.from_dict({**row.to_dict(), "newer": 1}).to_dict() == row.to_dict()


@pytest.mark.parametrize(("severity", "status"), [("warning", "fail"), ("info", "unknown")])
def test_what_was_found_before_it_could_not_look_further_is_found(severity: str, status: str) -> None:
    def judge(evidence: Evidence) -> Iterable[Finding]:
        yield Finding("Broken.", severity=severity)
        raise CannotLook("the rest was not seen")

    row, findings = run_one(judge)
    assert [finding.message for finding in findings] == ["Broken."]
    assert (row.status, row.reason) == (status, "Broken." if status == "fail" else "the rest was not seen")


def test_check_that_raises_has_found_nothing() -> None:
    def judge(evidence: Evidence) -> Iterable[Finding]:
        yield Finding("Broken.")
        raise RuntimeError("odd")

    row, findings = run_one(judge)
    assert (row.status, findings) == ("error", [])


def test_what_is_said_again_of_the_same_ranks_is_said_once() -> None:
    def judge(evidence: Evidence) -> Iterable[Finding]:
        yield Finding("A replica diverged.", ranks=RankSet([1]), details={"optimizer": 1})
        yield Finding("A replica diverged.", ranks=RankSet([1]), details={"optimizer": 2})
        yield Finding("A replica diverged.", ranks=RankSet([2]))

    _, findings = run_checks([make_check(judge)], Evidence())
    assert [(str(each.ranks), each.details) for each in findings] == [("1", {"optimizer": 1}), ("2", {})]
