from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import Finding
from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.prometheus import LABEL_SHOWN, RANKS_SHOWN, SERIES_SHOWN, PrometheusRenderer
from ddpdoctor.report.words import clean, clip
from tests.report.extremes import HOSTILE, sample_large, sample_many, sample_suppressed
from tests.report.samples import SAMPLES, sample_error, sample_healthy, sample_nodes, sample_problems

EVERYTHING: dict[str, Callable[[], Report]] = {
    **SAMPLES,
    "large": lambda: sample_large(64, 8),
    "many": lambda: sample_many(100),
    "suppressed": sample_suppressed,
}
Samples = dict[tuple[tuple[str, str], ...], float]


def render(report: Report) -> str:
    return PrometheusRenderer().render(report, RenderOptions())


def read(report: Report) -> dict[str, Samples]:
    """Return metric -> labels -> value, as the client library reads them."""
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(render(report)):
        assert family.type == "gauge"
        assert family.documentation
        for sample in family.samples:
            assert sample.timestamp is None, "the textfile collector refuses these"
            (command, _), *rest = sample.labels.items()
            assert command == "command"
            labels = tuple(rest)
            assert labels not in found.setdefault(sample.name.removeprefix("ddpdoctor_"), {})
            found[sample.name.removeprefix("ddpdoctor_")][labels] = sample.value
    return found


@pytest.mark.parametrize("name", EVERYTHING)
def test_text_is_what_the_library_reads(name: str) -> None:
    text = render(EVERYTHING[name]())
    text.encode("utf-8")
    assert text.endswith("\n")
    assert read(EVERYTHING[name]())["info"]
    assert len(text) < 400_000


def test_verdict_and_checks_are_counted() -> None:
    found = read(sample_problems())
    assert found["verdict"] == {
        (("status", "healthy"),): 0,
        (("status", "problems"),): 1,
        (("status", "unknown"),): 0,
        (("status", "error"),): 0,
    }
    assert found["checks"][(("status", "unknown"),)] == 4
    assert found["findings_by_severity"] == {
        (("severity", "error"),): 1,
        (("severity", "warning"),): 1,
        (("severity", "info"),): 0,
    }
    assert found["job_exit_code"] == {(): 1}
    assert found["start_time_seconds"] == {(): pytest.approx(1795184103.123456)}


def test_what_is_not_counted_is_a_number_of_its_own() -> None:
    found = read(sample_suppressed())
    assert found["suppressed_findings"] == {(): 3}
    assert "finding" not in found


def test_culprits_are_named_by_rank_node_and_code() -> None:
    found = read(sample_nodes())["finding"]
    assert {dict(labels)["code"]: dict(labels) for labels in found}["ENV004"] == {
        "code": "ENV004",
        "severity": "warning",
        "role": "cause",
        "node": "node-0003",
        "rank": "7",
    }
    blocked = [dict(labels) for labels in found if dict(labels)["code"] == "NET005"]
    assert [(each["node"], each["rank"]) for each in blocked] == [
        ("node-0001", "2"),
        ("node-0001", "3"),
        ("node-0002", "4"),
        ("node-0002", "5"),
    ]


def test_many_ranks_are_named_by_node_and_the_rest_is_counted() -> None:
    report = sample_large()
    everyone = replace(report.findings[0], ranks=RankSet.span(report.world.size))
    found = read(replace(report, findings=(everyone,)))
    assert len(found["finding"]) == SERIES_SHOWN
    assert {dict(labels)["rank"] for labels in found["finding"]} == {""}
    assert found["findings_cut"] == {(): 1}
    some = replace(report.findings[0], ranks=RankSet.span(RANKS_SHOWN))
    found = read(replace(report, findings=(some,)))
    assert len(found["finding"]) == RANKS_SHOWN
    assert "findings_cut" not in found


def test_units_are_bytes_and_seconds_and_wrong_results_have_none() -> None:
    report = sample_healthy()
    row = report.evidence.bandwidth[-1]
    labels = (("operation", row.op), ("backend", "gloo"), ("dtype", "float32"), ("bytes", str(row.bytes)))
    assert read(report)["bus_bandwidth_bytes_per_second"][labels] == pytest.approx(row.busbw * 1e9)
    assert read(report)["operation_duration_seconds"][labels] == pytest.approx(row.seconds)
    assert "bus_bandwidth_bytes_per_second" not in read(sample_error())


@pytest.mark.parametrize("text", [*HOSTILE, 'a"b\\n\\"} 1\nddpdoctor_evil 1', "\\", "a\nb", "{x='y'}"])
def test_label_holds_whatever_it_is_given(text: str) -> None:
    finding = Finding("m", code=text, name="n", severity="error")
    found = read(replace(sample_healthy(), findings=(finding,)))
    assert "evil" not in found
    (labels,) = found["findings"]
    assert dict(labels)["code"] == clip(clean(text), LABEL_SHOWN)
