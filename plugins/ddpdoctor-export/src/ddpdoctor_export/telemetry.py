"""OpenTelemetry: the command as a span, findings as its events, counts and lags as gauges."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from opentelemetry import metrics, trace
from opentelemetry.trace import Status, StatusCode

import ddpdoctor
from ddpdoctor_export.reading import began, count_severities, describe_place, list_findings, list_lags

RANKS_SHOWN = 64
"""Ranks that get a series of their own: those of eight nodes. Of more, those that lag most."""
PATHS = {"traces": "/v1/traces", "metrics": "/v1/metrics"}
TIMEOUT_S = 10


def record(report: ddpdoctor.Report, traces: trace.TracerProvider, meters: metrics.MeterProvider) -> None:
    """Put a report into the caller's own providers.

    Args:
        report: what to show.
        traces: gets one span.
        meters: gets the gauges.
    """
    start = int(began(report) * 1e9)
    end = start + int(report.duration_s * 1e9)
    span = traces.get_tracer("ddpdoctor", report.version).start_span(
        f"ddpdoctor {report.command}",
        start_time=start,
        attributes={
            "ddpdoctor.verdict": report.verdict.status,
            "ddpdoctor.code": report.verdict.code or "",
            "ddpdoctor.world_size": report.world.size,
            "ddpdoctor.nodes": [each.host for each in report.world.nodes],
        },
    )
    found = list_findings(report)
    for each in found:
        span.add_event(
            each["code"],
            {
                "ddpdoctor.name": each["name"],
                "ddpdoctor.severity": each["severity"],
                "ddpdoctor.confidence": each["confidence"],
                "ddpdoctor.role": each["role"],
                "ddpdoctor.message": each["message"],
                "ddpdoctor.ranks": each["ranks"],
                "ddpdoctor.where": describe_place(each),
                "ddpdoctor.fix": [fix["text"] for fix in each["fix"]],
            },
            timestamp=end,
        )
    if report.verdict.status in ("problems", "error"):
        span.set_status(Status(StatusCode.ERROR, found[0]["message"] if found else report.verdict.status))
    span.end(end)
    _put_gauges(report, meters)


def _put_gauges(report: ddpdoctor.Report, meters: metrics.MeterProvider) -> None:
    meter = meters.get_meter("ddpdoctor", report.version)
    common = {"ddpdoctor.command": report.command}
    healthy = meter.create_gauge("ddpdoctor.healthy", description="1 for a healthy verdict, 0 for any other.")
    healthy.set(int(report.verdict.status == "healthy"), common)
    findings = meter.create_gauge("ddpdoctor.findings", unit="{finding}", description="Findings by severity.")
    for severity, count in count_severities(report).items():
        findings.set(count, {**common, "ddpdoctor.severity": severity})
    lags = defaultdict(list)
    for each in list_lags(report):
        lags[each.rank].append(each.seconds)
    medians = sorted(((median(seconds), rank) for rank, seconds in lags.items()), reverse=True)
    lag = meter.create_gauge(
        "ddpdoctor.rank.lag", unit="s", description="Median lag of a rank behind the others of its node."
    )
    for seconds, rank in medians[:RANKS_SHOWN]:
        lag.set(seconds, {**common, "ddpdoctor.rank": rank})


def send(report: ddpdoctor.Report, endpoint: str | None) -> None:
    """Send a report to a collector over OTLP/HTTP.

    Args:
        report: what to show.
        endpoint: base URL of the collector; OpenTelemetry's own variables count where there is none.

    Raises:
        DoctorError: the collector did not take it.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    resource = Resource.create({"service.name": "ddpdoctor"})
    kept, reader = InMemorySpanExporter(), InMemoryMetricReader()
    traces, meters = TracerProvider(resource=resource), MeterProvider([reader], resource=resource)
    traces.add_span_processor(SimpleSpanProcessor(kept))
    record(report, traces, meters)
    measured = reader.get_metrics_data()
    # Exported here and not by a processor, which logs a failure and goes on: who sends wants to know.
    bases = {name: f"{endpoint.rstrip('/')}{path}" if endpoint else None for name, path in PATHS.items()}
    spans = OTLPSpanExporter(endpoint=bases["traces"], timeout=TIMEOUT_S)
    gauges = OTLPMetricExporter(endpoint=bases["metrics"], timeout=TIMEOUT_S)
    try:
        good = spans.export(kept.get_finished_spans()) is SpanExportResult.SUCCESS
        if good and measured is not None:
            good = gauges.export(measured) is MetricExportResult.SUCCESS
    finally:
        spans.shutdown()
        gauges.shutdown()
        traces.shutdown()
        meters.shutdown()
    if not good:
        raise ddpdoctor.DoctorError(
            "the collector did not accept the report",
            context=endpoint or "the endpoint of OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318",
            hint="ddpdoctor-export opentelemetry report.json --endpoint http://HOST:4318",
        )
