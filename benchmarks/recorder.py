"""How long `ddpdoctor analyze` takes for a directory of Flight Recorder dumps, against torch's own torchfrtrace."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.dumps import write_dumps
from benchmarks.figures import BenchmarkError, Figure
from benchmarks.timing import Command, find_script, require_success

NAME = "recorder"
SIZES = ((1024, 2000), (4096, 200))
"""Ranks, and entries of each dump; 2,000 is torch's default."""
BAR_RATIO = 0.05
BAR_MB = 400
"""A twentieth of torchfrtrace's time, and the memory (table "Speed and scale" of the design)."""
LIMIT_S, PERIOD_S = 1200.0, 0.05
CULPRIT = 7
"""Rank that never makes the last call."""


@dataclass(frozen=True, slots=True)
class _Seen:
    seconds: float
    peak_mb: float


def measure(folder: Path, rounds: int = 3, sizes: Sequence[tuple[int, int]] = SIZES) -> list[Figure]:
    """Write the dumps, then read them with both programs in turn; ours must name the rank that is missing.

    Raises:
        BenchmarkError: one of them failed, or ours was wrong.
    """
    figures = []
    for ranks, rows in sizes:
        dumps = folder / f"{ranks}x{rows}"
        dumps.mkdir()
        size = write_dumps(dumps, ranks, rows, CULPRIT)
        report = folder / "report.json"
        theirs = Command("torchfrtrace", (*find_script("torchfrtrace"), str(dumps)))
        words = ("analyze", str(dumps), "--json", str(report), "--fail-on", "never")
        ours = Command("ddpdoctor analyze", (*find_script("ddpdoctor"), *words))
        seen: dict[str, list[_Seen]] = {theirs.name: [], ours.name: []}
        for number in range(rounds):
            for command in (theirs, ours) if number % 2 else (ours, theirs):
                seen[command.name].append(_run(command, folder))
        _require_right(report)
        figures += _make_figures(
            f"{ranks:,} ranks x {rows:,} entries", size, seen[theirs.name], seen[ours.name]
        )
    return figures


def _run(command: Command, folder: Path) -> _Seen:
    log = folder / "output.log"
    with log.open("wb") as sink:
        began = time.perf_counter()
        process: subprocess.Popen[bytes] = command.start(folder, sink.fileno())
        peaks: dict[int, int] = {}
        while process.poll() is None:
            if time.perf_counter() - began > LIMIT_S:
                process.kill()
                process.wait()
                raise BenchmarkError(f"{command.name} did not end within {LIMIT_S:g} s")
            _note_peaks(process.pid, peaks)
            time.sleep(PERIOD_S)
        seconds = time.perf_counter() - began
    output = log.read_text(errors="replace")
    require_success(command.name, process.returncode, output)
    return _Seen(seconds, sum(peaks.values()) / 1e6)


def _note_peaks(pid: int, peaks: dict[int, int]) -> None:
    """Note the largest resident size that the kernel tells of a process and of its descendants (proc(5), VmHWM).

    Cheap whatever the size, unlike the proportional one; pages that processes share are counted in each.
    """
    try:
        tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return
    for each in tree:
        try:
            status = Path(f"/proc/{each}/status").read_text()
        except OSError:
            continue
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        if found is not None:
            peaks[each] = max(peaks.get(each, 0), int(found[1]) * 1024)


def _require_right(report: Path) -> None:
    finding = json.loads(report.read_text())["findings"][0]
    if (finding["code"], finding["ranks"]) != ("COL002", [CULPRIT]):
        raise BenchmarkError(f"analyze says {finding['message']}")


def _make_figures(what: str, size: int, theirs: Sequence[_Seen], ours: Sequence[_Seen]) -> list[Figure]:
    def median(seen: Sequence[_Seen]) -> float:
        return statistics.median(each.seconds for each in seen)

    def spread(seen: Sequence[_Seen]) -> str:
        times = [each.seconds for each in seen]
        return f"median of {len(times)}, {min(times):.3g}-{max(times):.3g} s"

    rounds = [a.seconds / b.seconds for a, b in zip(ours, theirs, strict=True)]
    by_round = f"by round {min(rounds):.3g}-{max(rounds):.3g}"
    return [
        Figure(NAME, f"{what}: torchfrtrace", median(theirs), "s", None, spread(theirs)),
        Figure(
            NAME,
            f"{what}: ddpdoctor analyze",
            median(ours),
            "s",
            None,
            f"{spread(ours)}; {size / 1e6:.0f} MB",
        ),
        Figure(
            NAME, f"{what}: of torchfrtrace's time", median(ours) / median(theirs), "", BAR_RATIO, by_round
        ),
        Figure(
            NAME,
            f"{what}: torchfrtrace, memory",
            max(each.peak_mb for each in theirs),
            "MB",
            None,
            "sum over processes",
        ),
        Figure(
            NAME,
            f"{what}: ddpdoctor, memory",
            max(each.peak_mb for each in ours),
            "MB",
            BAR_MB,
            "sum over processes",
        ),
    ]
