from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ddpdoctor.judge import Check, CheckRow, CodePage, Finding, Verdict, order_findings, reach_verdict


def make_check(code: str, *explains: str) -> Check:
    page = CodePage(code, "toy-broken", "Toy", "error", "", "1.0", "ddpdoctor", explains)
    return Check(f"id.{code}", (code,), "toys", (), lambda evidence: [], (page,))


def found(code: str, severity: str = "error", **fields: Any) -> Finding:
    return Finding(f"{code} happened.", code=code, severity=severity, **fields)


def order(findings: Sequence[Finding], *checks: Check) -> list[tuple[str, str]]:
    return [(f.code, f.role) for f in order_findings(findings, checks)]


def test_explained_finding_becomes_a_consequence_and_comes_later() -> None:
    checks = [make_check("B"), make_check("A", "B")]
    assert order([found("B"), found("A")], *checks) == [("A", "cause"), ("B", "consequence")]


def test_explanations_reach_over_others_that_are_present() -> None:
    checks = [make_check("A", "B"), make_check("B", "C"), make_check("C")]
    assert order([found("C"), found("B"), found("A")], *checks) == [
        ("A", "cause"),
        ("B", "consequence"),
        ("C", "consequence"),
    ]


def test_explanations_do_not_reach_over_absent_findings() -> None:
    checks = [make_check("A", "B"), make_check("B", "C"), make_check("C")]
    assert order([found("C"), found("A")], *checks) == [("A", "cause"), ("C", "cause")]


def test_warning_that_explains_an_error_is_the_root_cause() -> None:
    checks = [make_check("B"), make_check("A", "B")]
    assert order([found("B"), found("A", "warning")], *checks)[0] == ("A", "cause")


@pytest.mark.parametrize(
    "fields", [{"severity": "info"}, {"role": "advice"}, {"state": "withdrawn"}, {"role": "consequence"}]
)
def test_notes_advice_and_withdrawn_findings_explain_nothing(fields: dict[str, str]) -> None:
    checks = [make_check("A", "B"), make_check("B")]
    assert order([found("A", **fields), found("B")], *checks)[0] == ("B", "cause")


@pytest.mark.parametrize("first", ["A", "B"])
def test_codes_that_explain_each_other_leave_one_cause(first: str) -> None:
    second = "B" if first == "A" else "A"
    checks = [make_check(first, second), make_check(second, first)]
    assert order([found("A"), found("B")], *checks) == [(first, "cause"), (second, "consequence")]


def test_code_may_explain_itself_away_on_other_ranks_never() -> None:
    assert order([found("A"), found("A")], make_check("A", "A")) == [("A", "cause"), ("A", "cause")]


def test_what_ended_the_job_goes_before_whatever_else_is_wrong() -> None:
    checks = [make_check("A", "C"), make_check("B"), make_check("C")]
    late = found("C", "warning", decisive=True)
    assert order([found("A"), found("B"), late], *checks) == [("C", "cause"), ("A", "cause"), ("B", "cause")]


def test_decisive_findings_keep_role_severity_and_order_among_themselves() -> None:
    checks = [make_check("A"), make_check("B")]
    findings = [found("A", role="consequence", decisive=True), found("B", decisive=True)]
    assert order(findings, *checks) == [("B", "cause"), ("A", "consequence")]


def test_of_two_that_ended_the_job_the_explained_one_is_a_consequence() -> None:
    checks = [make_check("B"), make_check("A", "B")]
    findings = [found("B", decisive=True), found("A", decisive=True, confidence="medium")]
    assert order(findings, *checks) == [("A", "cause"), ("B", "consequence")]


def test_what_ended_the_job_is_a_cause_beside_what_explains_its_code_alone() -> None:
    checks = [make_check("B"), make_check("A", "B")]
    assert order([found("B", decisive=True), found("A")], *checks) == [("B", "cause"), ("A", "cause")]


def test_decisive_survives_being_saved_and_is_absent_where_it_does_not_apply() -> None:
    finding = found("A", decisive=True)
    assert Finding.from_dict(finding.to_dict()).decisive
    assert "decisive" not in found("A").to_dict()


def test_order_is_role_severity_confidence_and_checks() -> None:
    checks = [make_check(code) for code in "ABCDEFGH"]
    findings = [
        found("A", "info"),
        found("B", "warning", role="advice"),
        found("C", "warning"),
        found("D", confidence="low"),
        found("E"),
        found("F"),
        found("G", state="withdrawn"),
        found("Z"),
    ]
    assert [code for code, _ in order(findings, *checks)] == ["E", "F", "Z", "D", "C", "B", "A", "G"]


def test_first_of_several_rows_gives_the_place_of_a_code() -> None:
    checks = [make_check("A"), make_check("B"), make_check("A")]
    assert [code for code, _ in order([found("B"), found("A")], *checks)] == ["A", "B"]


def row(status: str, required: bool = True, id: str = "toy") -> CheckRow:
    return CheckRow(id, ("A",), "toys", status, None if status == "pass" else "why", 0.0, "d", required)


def verdict(rows: Sequence[CheckRow], *findings: Finding) -> Verdict:
    return reach_verdict(rows, findings, scope="4 ranks on 1 node")


def test_first_real_finding_is_the_headline() -> None:
    got = verdict([row("fail"), row("unknown")], found("A", "info"), found("B", "warning"), found("C"))
    assert (got.status, got.headline, got.code) == ("problems", "B happened.", "B")
    assert (got.looked, got.of) == (1, 2)


@pytest.mark.parametrize("note", [found("A", "info"), found("A", state="withdrawn")])
def test_notes_and_withdrawn_findings_are_healthy(note: Finding) -> None:
    got = verdict([row("pass"), row("skipped")], note)
    assert (got.status, got.code) == ("healthy", None)
    assert got.headline == "healthy · 1 of 2 checks ran · 4 ranks on 1 node"


@pytest.mark.parametrize("status", ["unknown", "error"])
def test_required_check_that_could_not_look_forbids_healthy(status: str) -> None:
    got = verdict([row("pass"), row(status, id="net.port")])
    assert got.status == "unknown"
    assert "net.port is inconclusive (why)" in got.headline


@pytest.mark.parametrize("status", ["unknown", "error"])
def test_optional_check_that_could_not_look_does_not(status: str) -> None:
    assert verdict([row("pass"), row(status, required=False)]).status == "healthy"


@pytest.mark.parametrize("rows", [[], [row("skipped")], [row("unknown", required=False)]])
def test_nothing_seen_is_never_healthy(rows: list[CheckRow]) -> None:
    assert verdict(rows).status == "unknown"


def test_checks_that_all_failed_themselves_are_an_error() -> None:
    assert verdict([row("error"), row("error")]).status == "error"


def test_verdict_survives_being_saved() -> None:
    got = verdict([row("fail")], found("B"))
    assert Verdict.from_dict({**got.to_dict(), "newer": 1}) == got


def test_failed_job_without_a_finding_is_a_problem_without_a_code() -> None:
    got = reach_verdict([row("pass")], [], scope="4 ranks", failure="exit code 1")
    assert (got.status, got.code) == ("problems", None)
    assert "exit code 1" in got.headline


def test_failed_job_with_a_finding_has_its_headline() -> None:
    got = reach_verdict([row("fail")], [found("A")], scope="4 ranks", failure="exit code 1")
    assert (got.headline, got.code) == ("A happened.", "A")


STOPPED = "interrupted by the user (SIGINT)"


def test_job_that_somebody_ended_is_told_so_and_is_not_called_healthy() -> None:
    got = reach_verdict([row("skipped"), row("pass")], [], scope="", stopped=STOPPED)
    assert got.status == "unknown"
    assert got.headline.startswith("interrupted by the user (SIGINT): no failure was seen")


def test_job_that_failed_before_somebody_ended_it_has_its_finding() -> None:
    assert reach_verdict([row("fail")], [found("A")], scope="", stopped=STOPPED).code == "A"


def test_checks_that_failed_themselves_are_told_before_who_ended_the_job() -> None:
    assert reach_verdict([row("error")], [], scope="", stopped=STOPPED).status == "error"


def test_what_was_found_on_another_node_is_the_answer_where_nothing_was_found_here() -> None:
    verdict = reach_verdict([], [], scope="1 rank", failure="exit code 1", elsewhere="COL002: Rank 3 waits")
    assert (verdict.status, verdict.headline) == ("problems", "ended on another node: COL002: Rank 3 waits")
