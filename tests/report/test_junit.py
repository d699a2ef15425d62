from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import junitparser
import pytest

from ddpdoctor.judge import CheckRow, Finding, Verdict
from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.junit import FINDINGS_SHOWN, JunitRenderer
from tests.report.extremes import sample_large, sample_many, sample_suppressed
from tests.report.samples import SAMPLES, sample_healthy, sample_nodes, sample_problems, sample_unknown

EVERYTHING: dict[str, Callable[[], Report]] = {
    **SAMPLES,
    "large": lambda: sample_large(64, 8),
    "many": lambda: sample_many(100),
    "suppressed": sample_suppressed,
}
ALLOWED = {
    "testsuites": ({"name"}, {"time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname"},
        {"testcase"},
    ),
    "testcase": ({"name"}, {"time", "classname"}, {"failure", "error", "skipped", "system-out"}),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}
"""Element -> attributes that it must have and may have, and children, as junit-10.xsd of Jenkins' xUnit plugin has them."""


def render(report: Report) -> str:
    return JunitRenderer().render(report, RenderOptions())


def read(report: Report) -> dict[str, dict[str, Any]]:
    """Return suite -> case -> result (None for one that passed), as junitparser reads them."""
    suites = junitparser.JUnitXml.fromstring(render(report).encode())
    return {suite.name: {case.name: next(iter(case.result), None) for case in suite} for suite in suites}


@pytest.mark.parametrize("name", EVERYTHING)
def test_xml_is_of_the_form_that_servers_read(name: str) -> None:
    text = render(EVERYTHING[name]())
    root = ElementTree.fromstring(text.encode("utf-8"))
    for element in root.iter():
        must, may, children = ALLOWED[element.tag]
        assert must <= set(element.attrib) <= must | may, element.tag
        assert {child.tag for child in element} <= children, element.tag
        assert re.fullmatch(r"\d+\.\d{3}", element.get("time", "0.000")), "the schema wants milliseconds"
    suites = junitparser.JUnitXml.fromstring(text.encode())
    counted = {kind: len(root.findall(f".//{kind}")) for kind in ("testcase", "failure", "error")}
    assert (suites.tests, suites.failures, suites.errors) == tuple(counted.values())
    assert sum(suite.tests for suite in suites) == suites.tests
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(set(names)) == len(names), "two cases of one name hide each other"


def test_finding_is_a_failed_case_with_its_text() -> None:
    blocked = read(sample_nodes())["network"]["net.link.ephemeral"]
    assert isinstance(blocked, junitparser.Failure)
    assert blocked.type == "NET005"
    assert blocked.message.startswith("NET005 port-range-blocked: node-0001 and node-0002 reach")
    assert "$ iptables -I INPUT" in blocked.text
    assert "ddpdoctor explain NET005" in blocked.text


def test_hang_fails_with_the_verdict() -> None:
    suites = read(sample_problems())
    verdict = suites["verdict"]["verdict"]
    assert isinstance(verdict, junitparser.Failure)
    assert verdict.type == "BKD011"
    assert verdict.message.startswith("Ranks 2 and 3 wait in all_reduce")
    assert "called from models/factory.py:34" in verdict.text


def test_verdict_is_green_only_for_a_healthy_report() -> None:
    assert read(sample_healthy())["verdict"] == {"verdict": None}
    unknown = read(sample_unknown())
    assert isinstance(unknown["verdict"]["verdict"], junitparser.Error)
    assert isinstance(unknown["network"]["net.port.free"], junitparser.Skipped)
    assert unknown["network"]["net.port.free"].message == "inconclusive: facts was stopped at its limit"
    silent = Verdict("problems", "the job failed (exit code 1), and the root cause is unknown", None, 1, 1)
    failed = read(replace(sample_healthy(), verdict=silent))["verdict"]["verdict"]
    assert isinstance(failed, junitparser.Failure)


def test_note_does_not_fail_a_case() -> None:
    root = ElementTree.fromstring(render(sample_healthy()).encode())
    (note,) = root.iter("system-out")
    assert "4 ranks x 2 threads run on 2 cores." in (note.text or "")
    assert root.get("failures") == root.get("errors") == "0"


def test_several_findings_of_a_check_are_cases_of_their_own() -> None:
    cases = read(sample_many(3))["source"]
    assert list(cases) == [f"lint.calls [src/part{n}.py:{n + 2}]" for n in range(3)]
    assert all(isinstance(result, junitparser.Failure) for result in cases.values())


def test_findings_of_one_place_have_names_of_their_own_and_notes_are_kept() -> None:
    report = sample_many(1)
    (finding,) = report.findings
    note = replace(finding, severity="info", message="Only a note.")
    root = ElementTree.fromstring(render(replace(report, findings=(finding, finding, note))).encode())
    names = [case.get("name") for case in root.iter("testcase")]
    assert names == ["verdict", "lint.calls [src/part0.py:2]", "lint.calls [src/part0.py:2] (2)"]
    assert [(each.text or "").splitlines()[0] for each in root.iter("system-out")] == ["Only a note."]


def test_what_is_left_out_is_told() -> None:
    root = ElementTree.fromstring(render(sample_many(FINDINGS_SHOWN + 5)).encode())
    assert len(list(root.iter("testcase"))) == FINDINGS_SHOWN + 1
    assert [each.text for each in root.iter("system-out")] == ["5 more findings in the JSON report"]


def test_of_two_checks_that_see_one_code_the_right_one_fails() -> None:
    rows = tuple(
        CheckRow(f"col.{name}", ("COL002",), "hangs", "fail", f"{name} saw it", 0.0, "ddpdoctor")
        for name in ("calls", "recorder")
    )
    findings = tuple(
        Finding(f"{name} saw it", code="COL002", name="collective-missing", severity="error")
        for name in ("recorder", "calls")
    )
    cases = read(replace(sample_healthy(), checks=rows, findings=findings))["hangs"]
    assert "recorder saw it" in cases["col.recorder"].text
    assert "calls saw it" in cases["col.calls"].text


def test_finding_of_no_check_is_not_lost() -> None:
    finding = Finding("Gone.", code="X-a-001", name="gone", severity="error")
    assert list(read(replace(sample_healthy(), findings=(finding,)))["findings"]) == ["X-a-001 gone"]


def test_what_is_not_counted_fails_no_case_and_is_told() -> None:
    root = ElementTree.fromstring(render(sample_suppressed()).encode())
    assert root.get("failures") == "0"
    assert [each.text for each in root.iter("system-out")] == ["suppressed: 2 by baseline, 1 by comment"]


def test_characters_that_xml_cannot_hold_become_visible() -> None:
    message = "a\x00\x1b[31m\ud800\ufffe\uffff]]><x/>\r\n&amp;"
    finding = Finding(message, code="ERR001", name="e", severity="error")
    result = read(replace(sample_healthy(), findings=(finding,)))["findings"]["ERR001 e"]
    assert "a␀␛[31m\\ud800\ufffd\ufffd]]><x/>" in result.text
    assert "&amp;" in result.text
