from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import Finding, Where
from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.sarif import SarifRenderer
from tests.report.extremes import sample_large, sample_many, sample_suppressed
from tests.report.parts import PAGES
from tests.report.samples import SAMPLES, sample_healthy, sample_nodes, sample_problems
from tests.report.sarif import find_problems

EVERYTHING: dict[str, Callable[[], Report]] = {
    **SAMPLES,
    "large": lambda: sample_large(64, 8),
    "many": lambda: sample_many(100),
    "suppressed": sample_suppressed,
}


def render(report: Report, **options: Any) -> str:
    return SarifRenderer().render(report, RenderOptions(pages=PAGES, **options))


def read(report: Report, **options: Any) -> Any:
    return json.loads(render(report, **options))["runs"][0]


def with_places(*places: Where) -> Report:
    finding = Finding(
        "Rank 0 waits.", code="COL002", name="collective-missing", severity="error", where=places
    )
    return replace(sample_healthy(), findings=(finding,))


@pytest.mark.parametrize("name", EVERYTHING)
def test_log_is_valid(name: str) -> None:
    text = render(EVERYTHING[name]())
    text.encode("utf-8")
    assert find_problems(text) == []


def test_validator_refuses_what_is_not_sarif() -> None:
    good = json.loads(render(sample_problems()))
    for path, value in (
        (("version",), "2.0.0"),
        (("runs", 0, "tool", "driver", "name"), None),
        (("runs", 0, "results", 0, "level"), "fatal"),
        (("runs", 0, "results", 0, "ruleIndex"), 1),
        (("runs", 0, "results", 0, "locations", 0, "physicalLocation", "region", "startLine"), 0),
    ):
        bad = json.loads(json.dumps(good))
        place: Any = bad
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        assert find_problems(json.dumps(bad)) != [], path


def test_finding_becomes_a_result_with_rule_place_and_help() -> None:
    run = read(sample_problems())
    result, other = run["results"]
    assert (result["ruleId"], result["level"], other["level"]) == ("BKD011", "error", "warning")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "models/reader.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 61, "snippet": {"text": "rows = sock.recv(1 << 20)"}}
    assert "fix: Give the socket a time-out" in result["message"]["text"]
    rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert (rule["id"], rule["name"]) == ("BKD011", "StageTimedOut")
    assert rule["shortDescription"]["text"] == "a stage was stopped at its limit"
    assert "### Fix\n\nOpen the range:\n\n```\nsysctl net" in rule["help"]["markdown"]
    assert result["properties"]["ranks"] == "1"
    assert result["properties"]["victims"] == "0,2-3"


def test_flows_go_from_the_caller_over_the_test_to_the_call_each_set_of_ranks_apart() -> None:
    zero, rest = RankSet([0]), RankSet([1, 2, 3])
    run = read(
        with_places(
            Where(zero, "culprit", "train.py", 7, "log_loss", "dist.all_reduce(loss)"),
            Where(zero, "condition", "train.py", 6),
            Where(zero, "caller", "train.py", 17, "main"),
            Where(zero, "caller", "train.py", 22, "<module>"),
            Where(rest, "victim", "train.py", 18, "main", "dist.barrier()"),
        )
    )
    flows = run["results"][0]["codeFlows"][0]["threadFlows"]
    lines = [
        [step["location"]["physicalLocation"]["region"]["startLine"] for step in flow["locations"]]
        for flow in flows
    ]
    assert lines == [[22, 17, 6, 7], [18]]
    assert [flow["id"] for flow in flows] == ["rank 0", "ranks 1-3"]
    assert [place["id"] for place in run["results"][0]["relatedLocations"]] == [1, 2, 3, 4]


def test_places_that_were_read_and_not_run_are_one_flow() -> None:
    nobody = RankSet()
    run = read(
        with_places(
            Where(nobody, "culprit", "t.py", 5, column=9), Where(nobody, "condition", "t.py", 4, column=5)
        )
    )
    (flow,) = run["results"][0]["codeFlows"][0]["threadFlows"]
    assert [step["location"]["physicalLocation"]["region"]["startColumn"] for step in flow["locations"]] == [
        5,
        9,
    ]
    assert "id" not in flow


def test_flow_through_source_says_what_each_line_does() -> None:
    report = sample_many(1)
    (finding,) = report.findings
    report = replace(report, findings=(replace(finding, details={"way": "if", "operation": "all_reduce"}),))
    (flow,) = read(report)["results"][0]["codeFlows"][0]["threadFlows"]
    words = [step["location"]["message"]["text"] for step in flow["locations"]]
    assert words == ["only some ranks enter", "not all ranks reach this"]


def test_finding_without_a_place_in_source_has_a_file_all_the_same() -> None:
    # GitHub's code scanning refuses a whole log for one result without
    blocked = read(sample_nodes())["results"][0]
    place = blocked["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "ddpdoctor/check"
    assert place["physicalLocation"]["region"] == {"startLine": 1}
    assert [each["name"] for each in place["logicalLocations"]] == ["node-0001", "node-0002"]
    assert "codeFlows" not in blocked


def test_files_are_named_from_the_top_of_the_checkout() -> None:
    report = with_places(
        Where(RankSet(), "culprit", "src/a b%#.py", 1),
        Where(RankSet(), "caller", "/builds/repo/lib/x.py", 1),
        Where(RankSet(), "caller", "/usr/lib/y.py", 1),
        Where(RankSet(), "caller", "../z.py", 1),
    )

    def uris(**options: Any) -> list[str]:
        result = read(report, **options)["results"][0]
        places = [*result["locations"], *result["relatedLocations"]]
        return [place["physicalLocation"]["artifactLocation"]["uri"] for place in places]

    inside = uris(root="/builds/repo", directory="/builds/repo/training")
    assert inside == ["training/src/a%20b%25%23.py", "lib/x.py", "file:///usr/lib/y.py", "z.py"]
    assert uris()[:2] == ["src/a%20b%25%23.py", "file:///builds/repo/lib/x.py"]


@pytest.mark.parametrize(
    "file", ["javascript:alert(1)", "http://evil/x", "a\nb", "\ud800", "", "C:\\x", "-", "<stdin>"]
)
def test_file_name_is_no_address(file: str) -> None:
    result = read(with_places(Where(RankSet(), "culprit", file, 1)))["results"][0]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert urlsplit(uri).scheme == urlsplit(uri).netloc == ""
    assert unquote(uri) in (file, "\\ud800", ".")


def test_line_of_a_cell_is_no_line_of_the_file() -> None:
    result = read(with_places(Where(RankSet(), "culprit", "t.ipynb", 2, cell=3)))["results"][0]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}
    assert "cell 3, line 2" in result["locations"][0]["message"]["text"]


def test_message_holds_neither_placeholders_nor_links() -> None:
    finding = Finding("KeyError: '{0}' [x](javascript:y) {a}", code="ERR001", name="e", severity="error")
    (result,) = read(replace(sample_healthy(), findings=(finding,)))["results"]
    assert result["message"]["text"] == "KeyError: '{{0}}' [x] (javascript:y) {a}"


def test_what_could_not_look_is_said_and_withdrawn_findings_are_not() -> None:
    run = read(SAMPLES["unknown"]())
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["level"] == "warning"
    assert "23 of 23 checks are inconclusive: facts was stopped" in note["message"]["text"]
    report = sample_problems()
    withdrawn = replace(report, findings=tuple(replace(f, state="withdrawn") for f in report.findings))
    assert read(withdrawn)["results"] == []


def test_what_the_user_has_told_not_to_count_is_told_and_no_result() -> None:
    # GitHub's code scanning opens an alert for a result with `suppressions` as for any other
    run = read(sample_suppressed())
    assert run["results"] == []
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"] == "findings that are suppressed: 2 by baseline, 1 by comment"
    remarks = run["invocations"][0]["toolConfigurationNotifications"]
    places = [each["locations"][0]["physicalLocation"] for each in remarks]
    assert [place["artifactLocation"]["uri"] for place in places] == ["src/a.py", "b.ipynb"]
    assert [place["region"]["startLine"] for place in places] == [7, 1]


def test_report_of_somebody_else_with_another_time_is_rendered() -> None:
    run = read(replace(sample_problems(), started_at="yesterday"))
    assert "startTimeUtc" not in run["invocations"][0]


def test_thousand_findings_stay_small() -> None:
    text = render(sample_many())
    assert len(json.loads(text)["runs"][0]["results"]) == 1000
    assert len(text) < 6_000_000
