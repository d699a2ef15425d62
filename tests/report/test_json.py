from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.json_renderer import JsonRenderer, replace_non_finite
from ddpdoctor.report.words import is_known
from tests.report.extremes import HOSTILE, sample_hostile, sample_large
from tests.report.samples import SAMPLES, sample_error, sample_healthy, sample_problems


def render(report: Report, **options: Any) -> str:
    return JsonRenderer().render(report, RenderOptions(**options))


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "error"])
def test_report_survives_the_round_trip(name: str) -> None:
    report = SAMPLES[name]()
    assert Report.from_dict(report.to_dict()) == report
    assert Report.from_dict(json.loads(render(report))) == report


def refuse(word: str) -> Any:
    raise AssertionError(f"{word} is not JSON")


def test_what_is_no_number_is_written_as_json_and_stays_none() -> None:
    data = json.loads(render(replace(sample_error(), duration_s=float("nan"))), parse_constant=refuse)
    assert data["duration_s"] is None
    row = Report.from_dict(data).evidence.bandwidth[0]
    assert not any(is_known(value) for value in (row.seconds, row.seconds_max))
    assert row.seconds_min == 0.0
    assert replace_non_finite([{"a": (float("inf"), 1.5)}]) == [{"a": [None, 1.5]}]


def test_report_with_nulls_can_be_read_again() -> None:
    again = Report.from_dict(json.loads(render(sample_error())))
    assert again.verdict == sample_error().verdict
    assert json.loads(render(again)) == json.loads(render(sample_error()))


def test_hostile_text_is_kept_and_can_be_written() -> None:
    text = render(sample_hostile())
    text.encode("utf-8")
    assert json.loads(text)["invocation"][: len(HOSTILE)] == list(HOSTILE)


def test_ascii_output_holds_nothing_else() -> None:
    report = replace(sample_healthy(), invocation=("ddpdoctor", "✓ é"))
    assert "✓" in render(report)
    assert render(report, ascii=True).isascii()
    assert json.loads(render(report, ascii=True)) == json.loads(render(report))


def test_layout_gives_each_row_a_line_and_findings_many() -> None:
    lines = render(sample_problems()).splitlines()
    assert lines[0] == "{"
    assert lines[-1] == "}"
    assert sum('"op": "all_reduce"' in line for line in render(sample_healthy()).splitlines()) > 5
    assert any(line.strip().startswith('"message": ') for line in lines)
    assert render(sample_problems()).endswith("}\n")


def test_large_report_stays_by_rows() -> None:
    report = sample_large(16, 8)
    text = render(report)
    assert Report.from_dict(json.loads(text)) == report
    assert len(text.splitlines()) < 4000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "not a ddpdoctor report"),
        ({"schema": "other"}, "not a ddpdoctor report"),
        ({"schema": "ddpdoctor.report", "schema_version": "2.0"}, "schema version 2.0"),
        ({"schema": "ddpdoctor.report", "schema_version": "1.0"}, "damaged"),
    ],
)
def test_what_is_no_report_is_refused(data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Report.from_dict(data)


def test_unknown_keys_are_ignored() -> None:
    report = sample_problems()
    data = report.to_dict()
    data["later"] = data["verdict"]["later"] = data["findings"][0]["later"] = 1
    data["findings"][0]["where"][0]["later"] = data["evidence"]["stages"][0]["later"] = 1
    assert Report.from_dict(data) == report
