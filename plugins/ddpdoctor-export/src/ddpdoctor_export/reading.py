"""What both exports show of a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import ddpdoctor

SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Lag:
    """How much later than the others of its node a rank came to a synchronization point of one step."""

    rank: int
    step: int
    at_s: float
    """Seconds since 1970."""
    seconds: float


def began(report: ddpdoctor.Report) -> float:
    """Return when the command began, in seconds since 1970."""
    return datetime.fromisoformat(report.started_at.replace("Z", "+00:00")).timestamp()


def list_findings(report: ddpdoctor.Report) -> list[dict[str, Any]]:
    """Return the findings that count in the report's JSON form, which holds no secrets."""
    found: list[dict[str, Any]] = json.loads(ddpdoctor.render(report, "json"))["findings"]
    return [each for each in found if each["state"] == "active"]


def count_severities(report: ddpdoctor.Report) -> dict[str, int]:
    """Return how many findings of each severity count."""
    counted = Counter(each.severity for each in report.findings if each.state == "active")
    return {each: counted[each] for each in SEVERITIES}


def list_lags(report: ddpdoctor.Report) -> Iterator[Lag]:
    """Yield the lag curve of each rank; nothing where steps were not timed."""
    ended = began(report) + report.duration_s
    for node in report.evidence.training:
        timing = node.timing
        for times in timing.ranks:
            for number, (step, seconds) in enumerate(zip(timing.columns, times.lags, strict=False)):
                at = timing.arrivals_ns[number] if number < len(timing.arrivals_ns) else None
                if seconds is not None:
                    yield Lag(times.rank, step, ended if at is None else at / 1e9, seconds)


def describe_place(finding: dict[str, Any]) -> str:
    """Return the first place of a finding as ``file:line``; empty where it has none."""
    return next((f"{each['file']}:{each['line']}" for each in finding["where"]), "")
