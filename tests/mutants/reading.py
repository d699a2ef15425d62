"""What `lint` says of the files of a program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import ddpdoctor_checks
from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.judge import QUESTION, Registry
from ddpdoctor.judge.runner import run_checks
from ddpdoctor.source.gather import read_sources


@dataclass(frozen=True, slots=True, order=True)
class Said:
    """A finding, as far as it is compared."""

    code: str
    file: str
    """From the root."""
    line: int
    severity: str
    message: str
    lines: tuple[tuple[str, int], ...] = ()
    """All places that it names."""
    question: bool = False
    """It asks and decides nothing."""


def read(root: Path, files: Iterable[str]) -> list[Said]:
    """Lint some files as one program.

    Args:
        root: what their names start from.
        files: their names.
    """
    registry = Registry()
    ddpdoctor_checks.register(registry)
    sources = read_sources([str(root / name) for name in files], registry.lint_rules)
    evidence = Evidence(launch=Launch("lint", nproc=0, world_size=0, backend="none"), sources=sources)
    _, findings = run_checks(registry.checks_of("lint"), evidence)
    found = []
    for each in findings:
        lines = tuple((_below(root, place.file), place.line) for place in each.where)
        file, line = lines[0] if lines else ("", 0)
        asks = each.role == QUESTION
        found.append(Said(each.code, file, line, each.severity or "", each.message, lines, asks))
    return sorted(set(found))


def _below(root: Path, file: str) -> str:
    path = Path(file).resolve()
    return str(path.relative_to(root.resolve())) if path.is_relative_to(root.resolve()) else file
