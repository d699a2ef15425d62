"""How long the evidence of 16,384 ranks takes from what the nodes send to the HTML page, and what it weighs.

The evidence is made and split in one process, and read, merged, judged and rendered in another, whose memory
is therefore that of the program and not of the simulation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.machine import GIB, ROOT
from benchmarks.timing import Command, Run, run_once

NAME = "judging"
BAR_S = 10.0
"""For judging; this and the next two are from the table "Speed and scale" of the design."""
BAR_HTML_MB = 3.0
BAR_MEMORY_GIB = 2.0
NODES, NPROC = 2048, 8
"""16,384 ranks."""
STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def measure(folder: Path, nodes: int = NODES, nproc: int = NPROC) -> list[Figure]:
    """Simulate, then judge in a process of its own.

    Raises:
        BenchmarkError: one of the processes failed.
    """
    figures = []
    for shape in ("healthy", "broken"):
        file = folder / f"{shape}.jsonl"
        _call("simulate", shape, file, nodes, nproc, folder)
        run = _call("judge", shape, file, nodes, nproc, folder)
        figures += _read_figures(shape, nodes * nproc, json.loads(run.output.splitlines()[-1]))
    return figures


def _call(step: str, shape: str, file: Path, nodes: int, nproc: int, folder: Path) -> Run:
    words = (step, "--shape", shape, "--file", str(file), "--nodes", str(nodes), "--nproc", str(nproc))
    argv = (sys.executable, "-m", "benchmarks.judging", *words)
    return run_once(Command(f"{step} {shape}", argv, {"PYTHONPATH": str(ROOT)}), folder)


def _read_figures(shape: str, ranks: int, seen: dict[str, float]) -> list[Figure]:
    label = f"{ranks:,} ranks, {shape}: "
    reading = f"{seen['sent_mb']:.0f} MB of JSON from {seen['nodes']:.0f} nodes"
    judging = f"{seen['checks']:.0f} checks, {seen['findings']:.0f} findings, one run"
    return [
        Figure(NAME, label + "read and merge", seen["read"] + seen["merge"], "s", None, reading),
        Figure(NAME, label + "judge", seen["judge"], "s", BAR_S, judging),
        Figure(NAME, label + "render HTML", seen["html"], "s"),
        Figure(NAME, label + "render JSON", seen["json"], "s", None, f"{seen['json_mb']:.0f} MB"),
        Figure(NAME, label + "HTML", seen["html_mb"], "MB", BAR_HTML_MB),
        Figure(NAME, label + "memory", seen["memory_gib"], "GiB", BAR_MEMORY_GIB, "peak resident, all steps"),
    ]


def simulate(shape: str, file: Path, nodes: int, nproc: int) -> None:
    """Write what each node would send, one line each."""
    from benchmarks.simulated import SHAPES, split_by_node

    with file.open("w") as sink:
        for part in split_by_node(SHAPES[shape](nodes, nproc), nproc):
            sink.write(json.dumps(part.to_dict()) + "\n")


def judge(file: Path) -> dict[str, float]:
    """Do what the hosting node does with the evidence of all nodes, and say what it took.

    Returns:
        Seconds of each step, sizes in MB (1e6 bytes), peak resident memory in GiB, and counts.
    """
    from ddpdoctor.evidence import Evidence, merge_evidence
    from ddpdoctor.plugins import CHECKS, load_plugins
    from ddpdoctor.report.build import build_report
    from ddpdoctor.report.registry import RenderOptions

    seen: dict[str, float] = {"sent_mb": file.stat().st_size / 1e6}
    plugins = load_plugins(groups=[CHECKS])
    with _timed(seen, "read"), file.open() as lines:
        parts = [Evidence.from_dict(json.loads(line)) for line in lines]
    seen["nodes"] = len(parts)
    with _timed(seen, "merge"):
        evidence = merge_evidence(parts)
    del parts
    with _timed(seen, "judge"):
        report = build_report(
            evidence,
            registry=plugins.checks,
            started_at=STARTED,
            duration_s=0.0,
            invocation=("ddpdoctor", "check"),
        )
    seen["checks"], seen["findings"] = len(report.checks), len(report.findings)
    for name in ("html", "json"):
        renderer = plugins.renderers.find(name)
        if renderer is None:
            raise LookupError(f"no renderer called {name}")
        with _timed(seen, name):
            text = renderer.render(report, RenderOptions(pages=plugins.checks.pages))
        seen[f"{name}_mb"] = len(text.encode()) / 1e6
    seen["memory_gib"] = read_peak_memory() / GIB
    return seen


@contextlib.contextmanager
def _timed(seen: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seen[name] = time.perf_counter() - began


def read_peak_memory() -> int:
    """Return the peak resident memory of this process in bytes.

    VmHWM of proc(5): getrusage's ru_maxrss would also count the parent, from which this process was forked.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError("/proc/self/status has no VmHWM")


def main() -> None:
    """Run one step in this process; the benchmark calls it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judging", description=main.__doc__)
    parser.add_argument("step", choices=("simulate", "judge"))
    parser.add_argument("--shape", default="healthy")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--nproc", type=int, default=NPROC)
    options = parser.parse_args()
    if options.step == "simulate":
        simulate(options.shape, options.file, options.nodes, options.nproc)
    else:
        print(json.dumps(judge(options.file)))


if __name__ == "__main__":
    main()
