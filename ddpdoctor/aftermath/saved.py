"""Reports that were saved with ``--json``, read again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ddpdoctor.errors import DoctorError, UsageError
from ddpdoctor.gather.opening import UNREADABLE, open_log, read_some
from ddpdoctor.report.model import Report

SIZE_LIMIT = 4 << 30
"""Bytes of a report: those of 16,384 ranks have some 200 MB."""


def read_report(name: str) -> Report:
    """Read a saved report; ``-`` is stdin.

    Raises:
        UsageError: there is no such file.
        DoctorError: it cannot be read, or is not a report that this version knows.
    """
    shown = "stdin" if name == "-" else name
    try:
        data = sys.stdin.buffer.read() if name == "-" else _read_file(Path(name))
    except FileNotFoundError as problem:
        raise UsageError(
            f"there is no file {name}", hint="ddpdoctor check --nproc 4 --json report.json"
        ) from problem
    except (*UNREADABLE, ValueError) as problem:
        raise UsageError(
            f"{shown} cannot be read: {getattr(problem, 'strerror', None) or problem}"
        ) from problem
    try:
        return Report.from_dict(json.loads(data.decode("utf-8")))
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError) as problem:
        raise DoctorError(
            f"{shown} is not JSON: {problem}", hint="pass the file that --json wrote"
        ) from problem
    except ValueError as problem:
        raise DoctorError(f"{shown}: {problem}", hint="pass the file that --json wrote") from problem


def _read_file(path: Path) -> bytes:
    """Read a file, or what a shell's ``<(…)`` gives; a file that is compressed is unpacked, up to `SIZE_LIMIT`."""
    if not os.path.isfile(path):
        return path.read_bytes()
    with open_log(path) as stream:
        return read_some(stream, SIZE_LIMIT)
