"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

GIB = 1 << 30
ROOT = Path(__file__).resolve().parent.parent


def describe_machine() -> list[str]:
    """Return facts of the machine and of what was measured, one text each."""
    load = os.getloadavg()[0]
    return [
        f"{len(os.sched_getaffinity(0))} cores of {_read_processor()}",
        f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / GIB:.3g} GiB of memory",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        f"torch {_read_version('torch')}",
        f"ddpdoctor {_read_version('ddpdoctor')} ({read_commit()})",
        f"load average at the start {load:.3g}",
    ]


def _read_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine()).replace(" Processor", "")


def _read_version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def read_commit() -> str:
    """Return the short commit of this checkout, with a mark where files differ from it."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "commit unknown"
    return said.stdout.strip()
