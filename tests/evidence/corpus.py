"""Evidence of dead, hanging, wrong and slow NCCL jobs, written after public incidents, each with its stated cause.

Templates of NCCL, torch and the tools are theirs to the letter; names, addresses, paths, numbers and all prose are
made up. A case is a folder of ``nccl/`` with the evidence and a ``case.json``. Half of the cases may be looked at while
rules are written (``seen``); the others say how well the rules do on what nobody looked at. They were labelled before
any tool had read them. Cases that who writes rules has written himself are ``looked_at``: of the seen half.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "nccl"
FACTS = "case.json"
VERDICTS = ("failed", "untold", "healthy")
HALVES = ("seen", "unseen")


@dataclass(frozen=True, slots=True)
class Case:
    """One incident."""

    name: str
    folder: Path
    title: str
    source: str
    """Where the incident is described, and what its cause was."""
    cause: str
    codes: tuple[str, ...]
    """Codes that are right, the most specific first. None: nothing is wrong, or no code says what was."""
    verdict: str
    """failed; untold, where the stated cause cannot be known from the evidence; healthy."""
    misleading: tuple[str, ...]
    """Codes that would send the owner the wrong way."""
    ranks: tuple[int, ...] | None = None
    """At fault; an empty tuple where nobody is; None where the evidence does not say."""
    hosts: tuple[str, ...] = ()
    device: str | None = None
    decisive: str | None = None
    """A piece of the line that a reader has to see."""
    looked_at: bool = False
    """Whoever writes rules has read it, whatever its name says."""

    @property
    def half(self) -> str:
        """Which half the case is of: by its name alone, so that it never changes, unless it was looked at."""
        return HALVES[not self.looked_at and hashlib.sha256(self.name.encode()).digest()[0] >= 128]

    @property
    def files(self) -> list[Path]:
        """The evidence."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and path.name != FACTS)


def load_case(folder: Path) -> Case:
    """Read one case.

    Raises:
        TypeError: it has a field too many or too few.
    """
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    lists = {key: tuple(value) for key, value in facts.items() if isinstance(value, list)}
    return Case(name=folder.name, folder=folder, **{**facts, **lists})


def load_all() -> list[Case]:
    """Read all cases, in the order of their names."""
    return [load_case(path.parent) for path in sorted(FOLDER.glob(f"*/{FACTS}"))]
