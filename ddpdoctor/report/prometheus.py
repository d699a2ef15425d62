"""Format ``prometheus``: gauges for the textfile collector of a node exporter, from a cron job or a prolog.

Text exposition format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/; without time stamps, which
the collector refuses; base units and names as in https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from ddpdoctor.evidence import BandwidthRow
from ddpdoctor.judge.finding import SEVERITIES, Finding
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.words import clean, clip, is_known

VERDICTS = ("healthy", "problems", "unknown", "error")
STATUSES = ("pass", "fail", "skipped", "unknown", "error")
RANKS_SHOWN = 64
"""Culprit ranks of one finding that get a series each: those of eight nodes. More are counted by node."""
SERIES_SHOWN = 1000
"""Series of findings in all; a time series costs the server memory."""
BANDWIDTH_SHOWN = 500
LABEL_SHOWN = 120
"""Characters of a label."""

Labels = dict[str, str]


class PrometheusRenderer:
    """Format ``prometheus``."""

    name = "prometheus"
    description = "gauges for a Prometheus textfile collector"

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return the metrics, each with its help and type."""
        page = _Page(report.command)
        _put_verdict(page, report)
        _put_findings(page, report)
        _put_times(page, report)
        _put_bandwidth(page, report.evidence.bandwidth)
        return page.text()


class _Page:
    """Collects metrics; none appears without a sample.

    All carry the command: a collector refuses a whole directory where two files have the same series.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._lines: list[str] = []

    def put(self, name: str, words: str, samples: Sequence[tuple[Labels, float | None]]) -> None:
        """Write one gauge; samples whose value is not known are left out."""
        known = [(labels, value) for labels, value in samples if is_known(value)]
        if not known:
            return
        self._lines += [f"# HELP ddpdoctor_{name} {words}", f"# TYPE ddpdoctor_{name} gauge"]
        series = {_write_labels({"command": self._command, **labels}): value for labels, value in known}
        for labels, value in series.items():
            self._lines.append(f"ddpdoctor_{name}{labels} {float(value):.15g}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _write_labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escape(text: str) -> str:
    shown = clip(clean(text), LABEL_SHOWN)
    return shown.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _put_verdict(page: _Page, report: Report) -> None:
    world, status = report.world, report.verdict.status
    info = {
        "version": report.version,
        "backend": world.backend or "",
        "torch": world.torch or "",
        "launcher": world.launcher or "",
    }
    page.put("info", "The version and command that produced the report.", [(info, 1)])
    page.put(
        "verdict",
        "1 for the current verdict; only healthy is good.",
        [({"status": each}, float(each == status)) for each in VERDICTS],
    )
    counted = Counter(row.status for row in report.checks)
    page.put(
        "checks",
        "Checks by status; unknown means inconclusive.",
        [({"status": each}, counted[each]) for each in STATUSES],
    )
    page.put("world_size", "Ranks.", [({}, world.size)])
    page.put("nodes", "Nodes.", [({}, len(world.nodes))])
    if report.job is not None:
        page.put("job_exit_code", "Exit code of the watched job.", [({}, report.job.exit_code)])


def _put_findings(page: _Page, report: Report) -> None:
    """How many of each code, and who: rank by rank where these are few, else by node."""
    active = [each for each in report.findings if each.state == "active"]
    severities = Counter(each.severity or "error" for each in active)
    page.put(
        "findings_by_severity",
        "Findings by severity.",
        [({"severity": each}, severities[each]) for each in SEVERITIES],
    )
    codes = Counter((each.code, each.name, each.severity or "error") for each in active)
    page.put(
        "findings",
        "Findings by code.",
        [({"code": c, "name": n, "severity": s}, number) for (c, n, s), number in codes.items()],
    )
    hidden = sum(each.state == "suppressed" for each in report.findings)
    page.put("suppressed_findings", "Findings suppressed by the user.", [({}, hidden)])
    hosts = {rank: node.host for node in report.world.nodes for rank in node.ranks}
    samples: list[tuple[Labels, float | None]] = []
    cut = 0
    for finding in active:
        named = _name_culprits(finding, hosts) if len(samples) < SERIES_SHOWN else []
        cut += not named or len(samples) + len(named) > SERIES_SHOWN
        samples += named
    page.put(
        "finding",
        "1 for each rank or node that a finding names as the root cause; rank is empty for a node.",
        samples[:SERIES_SHOWN],
    )
    page.put(
        "findings_cut", "Findings for which not all ranks or nodes have a series.", [({}, cut)] if cut else []
    )


def _name_culprits(finding: Finding, hosts: Mapping[int, str]) -> list[tuple[Labels, float | None]]:
    label = {"code": finding.code, "severity": finding.severity or "error", "role": finding.role}
    if not finding.ranks:
        named = finding.nodes or ("",)
        return [({**label, "node": host, "rank": ""}, 1) for host in named]
    if len(finding.ranks) <= RANKS_SHOWN:
        return [({**label, "node": hosts.get(rank, ""), "rank": str(rank)}, 1) for rank in finding.ranks]
    named = tuple(dict.fromkeys(hosts.get(rank, "") for rank in finding.ranks))
    return [({**label, "node": host, "rank": ""}, 1) for host in named]


def _put_times(page: _Page, report: Report) -> None:
    page.put("duration_seconds", "Duration of the command.", [({}, report.duration_s)])
    page.put(
        "start_time_seconds", "Start of the command in Unix time.", [({}, _read_time(report.started_at))]
    )
    page.put(
        "stage_duration_seconds",
        "Duration of each stage, on the slowest node.",
        [({"stage": stage}, seconds) for stage, seconds in report.timings.items()],
    )


def _read_time(text: str) -> float | None:
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")
    except ValueError:  # somebody else wrote the report
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp()


def _put_bandwidth(page: _Page, rows: Sequence[BandwidthRow]) -> None:
    """Only results that were right."""
    right = [row for row in rows if row.correct][:BANDWIDTH_SHOWN]
    labelled = [
        ({"operation": row.op, "backend": row.backend, "dtype": row.dtype, "bytes": str(row.bytes)}, row)
        for row in right
    ]
    page.put(
        "bus_bandwidth_bytes_per_second",
        "Bus bandwidth as nccl-tests defines it, by size of the buffer.",
        [(labels, row.busbw * 1e9 if is_known(row.busbw) else None) for labels, row in labelled],
    )
    page.put(
        "operation_duration_seconds",
        "Time of one call on the slowest rank, by size of the buffer.",
        [(labels, row.seconds) for labels, row in labelled],
    )
