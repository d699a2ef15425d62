"""A real report, read back by TensorBoard's own reader and received by a collector's own messages."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ddpdoctor_export", reason="the plugin is not installed")

import ddpdoctor
from ddpdoctor_export import main
from ddpdoctor_export.reading import count_severities, list_lags

LIMIT_S = 280
STEPS = 30
TRAIN = f"""import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range({STEPS}):
    if dist.get_rank() == 1:
        time.sleep(0.05)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
BOARD = pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="tensorboard is not installed")
SPANS = pytest.mark.skipif(
    not importlib.util.find_spec("opentelemetry") or not importlib.util.find_spec("opentelemetry.exporter"),
    reason="opentelemetry's OTLP exporter is not installed",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a job whose rank 1 is late."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "run", "--nproc", "2", "--run-dir", "run", "train.py"],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("COV")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_lags_are_of_the_late_rank(run: Path) -> None:
    lags: dict[int, list[float]] = {}
    for each in list_lags(ddpdoctor.load_report(run)):
        lags.setdefault(each.rank, []).append(each.seconds)
    assert set(lags) == {0, 1}
    assert sorted(lags[1])[len(lags[1]) // 2] > 0.02


@BOARD
def test_tensorboard_reads_verdict_and_curves(run: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["tensorboard", str(run), "--logdir", str(tmp_path)]) == 0
    read = EventAccumulator(str(tmp_path / "ddpdoctor"))
    read.Reload()
    report = ddpdoctor.load_report(run)
    (verdict,) = read.Tensors("ddpdoctor/verdict/text_summary")
    assert report.verdict.headline.split(":")[0] in verdict.tensor_proto.string_val[0].decode()
    for rank in (0, 1):
        curve = [(each.step, each.seconds) for each in list_lags(report) if each.rank == rank]
        shown = read.Scalars(f"ddpdoctor/lag_s/rank_{rank}")
        assert [each.step for each in shown] == [step for step, _ in curve]
        assert [each.value for each in shown] == pytest.approx([seconds for _, seconds in curve])
        assert [each.wall_time for each in shown] == sorted(each.wall_time for each in shown)
    for severity, count in count_severities(report).items():
        assert read.Scalars(f"ddpdoctor/findings/{severity}")[0].value == count


class Collector(BaseHTTPRequestHandler):
    """Takes what comes; answers with the status of the server."""

    def do_POST(self) -> None:
        server: Any = self.server
        server.came[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Collector)
    server.came, server.status = {}, 200
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def attributes_of(item: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in item.attributes}


def ask(run: Path, port: int) -> int:
    return main(["opentelemetry", str(run), "--endpoint", f"http://127.0.0.1:{port}/"])


@SPANS
def test_collector_gets_a_span_with_findings_and_gauges(run: Path, collector: Any) -> None:
    import gzip

    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    def read(path: str) -> bytes:
        data: bytes = collector.came[path]
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data

    report = ddpdoctor.load_report(run)
    assert ask(run, collector.server_port) == 0
    resource = ExportTraceServiceRequest.FromString(read("/v1/traces")).resource_spans[0]
    assert attributes_of(resource.resource)["service.name"] == "ddpdoctor"
    (span,) = resource.scope_spans[0].spans
    assert span.name == "ddpdoctor run"
    assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 == pytest.approx(
        report.duration_s, abs=1e-3
    )
    assert attributes_of(span)["ddpdoctor.verdict"] == report.verdict.status
    assert attributes_of(span)["ddpdoctor.world_size"] == 2
    active = [each for each in report.findings if each.state == "active"]
    assert [event.name for event in span.events] == [each.code for each in active]
    assert [attributes_of(event)["ddpdoctor.message"] for event in span.events] == [
        each.message for each in active
    ]

    (scope,) = ExportMetricsServiceRequest.FromString(read("/v1/metrics")).resource_metrics[0].scope_metrics
    gauges = {each.name: each.gauge.data_points for each in scope.metrics}
    assert set(gauges) == {"ddpdoctor.healthy", "ddpdoctor.findings", "ddpdoctor.rank.lag"}
    assert gauges["ddpdoctor.healthy"][0].as_int == int(report.verdict.status == "healthy")
    lags = {attributes_of(each)["ddpdoctor.rank"]: each.as_double for each in gauges["ddpdoctor.rank.lag"]}
    assert lags[1] > lags[0]


@SPANS
def test_collector_that_refuses_is_an_error_with_what_to_type(
    run: Path, collector: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    collector.status = 400
    assert ask(run, collector.server_port) == 3
    said = capsys.readouterr().err
    assert "the collector did not accept the report" in said
    assert "--endpoint http://HOST:4318" in said


def test_report_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tensorboard", str(tmp_path / "none.json"), "--logdir", str(tmp_path)]) == 3
    assert "none.json" in capsys.readouterr().err
    assert not (tmp_path / "ddpdoctor").exists()


def test_package_that_is_missing_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["tensorboard", str(run), "--logdir", str(tmp_path)]) == 3
    assert "pip install 'ddpdoctor-export[tensorboard]'" in capsys.readouterr().err
