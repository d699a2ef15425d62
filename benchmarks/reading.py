"""How long `lint` takes for files of which most are right, and how many alarms it gives for a thousand of them."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

from benchmarks.figures import BenchmarkError, Figure
from benchmarks.machine import ROOT
from benchmarks.timing import Command, run_once
from ddpdoctor.errors import EXIT_FAILED, EXIT_OK

NAME = "lint"
BAR_S = 10.0
"""For a thousand files: "1,000 files in seconds"."""
BAR_ALARMS = 1.0
"""Errors and warnings for a thousand files that people use every day; each that is seen here is looked at."""


def measure(folder: Path) -> list[Figure]:
    """Lint the standard library, and all packages that are installed beside ddpdoctor.

    Raises:
        BenchmarkError: `lint` could not do it.
    """
    paths = sysconfig.get_paths()
    figures = []
    for label, path in (("standard library", paths["stdlib"]), ("installed packages", paths["platlib"])):
        figures += measure_files(label, _find_packages(Path(path)), folder)
    return figures


def _find_packages(path: Path) -> Path:
    """Return where packages lie: those that a file of paths names, where the environment has none of its own."""
    if (path / "torch").exists() or path.name != "site-packages":
        return path
    named = [line for file in path.glob("*.pth") for line in file.read_text("utf-8").splitlines()]
    return next((Path(line) for line in named if (Path(line) / "torch").exists()), path)


def measure_files(label: str, path: Path, folder: Path) -> list[Figure]:
    """Lint what lies below ``path``.

    Raises:
        BenchmarkError: there is no file, or `lint` could not read any.
    """
    file = folder / "lint.json"
    options = (str(path), "--fail-on", "never", "--json", str(file), "-q")
    run = run_once(
        Command(label, (sys.executable, "-m", "ddpdoctor", "lint", *options), {"PYTHONPATH": str(ROOT)}),
        folder,
        (EXIT_OK, EXIT_FAILED),  # also where a file of another Python cannot be read
    )
    if not file.exists():
        raise BenchmarkError(f"lint wrote no report of {path}")
    report = json.loads(file.read_text("utf-8"))
    files = len(report["evidence"]["sources"])
    if not files:
        raise BenchmarkError(f"lint read no file of {path}")
    unread = sum(row["problem"] is not None for row in report["evidence"]["sources"])
    alarms = [each for each in report["findings"] if each["state"] == "active" and each["severity"] != "info"]
    codes = ", ".join(sorted({each["code"] for each in alarms})) or "none"
    thousand = files / 1000
    size = f"{files:,} files, {unread} of them no Python of this version, one run"
    return [
        Figure(NAME, f"{label}: a thousand files", run.seconds / thousand, "s", BAR_S, size),
        Figure(NAME, f"{label}: processor", run.cpu_seconds / thousand, "s", None, "of all processes"),
        Figure(
            NAME, f"{label}: alarms", len(alarms) / thousand, "", BAR_ALARMS, f"for a thousand files: {codes}"
        ),
    ]
