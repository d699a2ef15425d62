from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest

from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.json_renderer import JsonRenderer
from ddpdoctor.report.schema import load_schema
from ddpdoctor.report.schema.build import build_schema
from tests.report.extremes import sample_large
from tests.report.samples import SAMPLES, sample_healthy, sample_problems

OPEN = ("node",)
"""Definitions that hold whatever a later version adds; ``details`` and maps have no fixed keys either."""


def as_json(report: Report) -> Any:
    return json.loads(JsonRenderer().render(report, RenderOptions()))


def close(schema: Any, name: str = "") -> Any:
    """Return the schema with every fixed object closed, so that an undocumented key is an error."""
    if isinstance(schema, list):
        return [close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value, key) for key, value in schema.items()}
    if "properties" in closed and closed.get("type") == "object" and name not in OPEN:
        closed.setdefault("additionalProperties", False)
    return closed


@pytest.fixture(scope="module")
def strict() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(close(load_schema()))


def test_schema_is_a_schema_and_fits_the_dataclasses() -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema())
    assert load_schema() == build_schema(), "run: python -m ddpdoctor.report.schema.build"


@pytest.mark.parametrize("name", SAMPLES)
def test_report_fits_the_schema_with_no_undocumented_key(
    name: str, strict: jsonschema.Draft202012Validator
) -> None:
    problems = [f"{list(p.absolute_path)}: {p.message}" for p in strict.iter_errors(as_json(SAMPLES[name]()))]
    assert problems == []


def test_every_verdict_status_is_among_the_samples() -> None:
    assert {make().verdict.status for make in SAMPLES.values()} == {"problems", "healthy", "unknown", "error"}


def test_large_report_fits_the_schema(strict: jsonschema.Draft202012Validator) -> None:
    assert next(strict.iter_errors(as_json(sample_large(64, 8))), None) is None


def damage(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy in which ``path`` (dots) holds ``value``; None removes it."""
    damaged = copy.deepcopy(data)
    *parents, last = path.split(".")
    place: Any = damaged
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    if value is None:
        del place[int(last) if last.isdigit() else last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return damaged


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("verdict", None),
        ("verdict.status", "fine"),
        ("schema", "other"),
        ("schema_version", "2.0"),
        ("started_at", "2026-11-20 14:15:03"),
        ("findings.0.severity", "fatal"),
        ("findings.0.code", ""),
        ("findings.0.ranks", "0-2"),
        ("findings.0.pairs", [["only one"]]),
        ("checks.0.status", "maybe"),
        ("checks.0", {"id": "x", "codes": [], "family": "f", "status": "skipped", "reason": None}),
        ("evidence.launch.world_size", "4"),
        ("evidence.nodes.0.host", 5),
        ("measurements.bandwidth", {}),
        ("measurements.timings", None),
        ("world.nodes.0.ranks", None),
    ],
)
def test_schema_refuses_what_is_not_a_report(path: str, value: Any) -> None:
    data = as_json(sample_healthy())
    validator = jsonschema.Draft202012Validator(load_schema())
    assert next(validator.iter_errors(data), None) is None
    assert next(validator.iter_errors(damage(data, path, value)), None) is not None


def test_schema_accepts_what_later_versions_add() -> None:
    data = as_json(sample_problems())
    data["schema_version"] = "1.7"
    data["later"] = data["verdict"]["later"] = data["findings"][0]["later"] = {"x": 1}
    jsonschema.Draft202012Validator(load_schema()).validate(data)
