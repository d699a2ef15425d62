"""ddpdoctor: names the cause when a PyTorch DistributedDataParallel job does not work.

``check``, ``lint`` and ``analyze`` do what the commands of these names do and return a `Report`; ``load_report``
reads one that was saved, ``render`` makes a text of it. All is imported when it is first asked for (docs/api.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpdoctor.api.functions import analyze, check, corrections, lint, load_report, render
    from ddpdoctor.api.linting import Correction
    from ddpdoctor.errors import DoctorError, OutputError, UsageError
    from ddpdoctor.evidence.ranks import RankSet
    from ddpdoctor.judge.finding import EvidenceItem, Finding, Fix, Where
    from ddpdoctor.judge.verdict import Verdict
    from ddpdoctor.phases import mark_phase, phase
    from ddpdoctor.report.model import Report

__version__ = "0.1.0"
__all__ = [
    "Correction",
    "DoctorError",
    "EvidenceItem",
    "Finding",
    "Fix",
    "OutputError",
    "RankSet",
    "Report",
    "UsageError",
    "Verdict",
    "Where",
    "__version__",
    "analyze",
    "check",
    "corrections",
    "lint",
    "load_report",
    "mark_phase",
    "phase",
    "render",
]

_HOMES = {
    "ddpdoctor.api.functions": ("analyze", "check", "corrections", "lint", "load_report", "render"),
    "ddpdoctor.api.linting": ("Correction",),
    "ddpdoctor.errors": ("DoctorError", "OutputError", "UsageError"),
    "ddpdoctor.evidence.ranks": ("RankSet",),
    "ddpdoctor.judge.finding": ("EvidenceItem", "Finding", "Fix", "Where"),
    "ddpdoctor.judge.verdict": ("Verdict",),
    "ddpdoctor.phases": ("mark_phase", "phase"),
    "ddpdoctor.report.model": ("Report",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            import importlib

            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'ddpdoctor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
