"""What an entry showed, as it is kept between runs: one JSON file for each."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.matrix.entries import ENTRIES, Entry

RESULTS = Path(__file__).with_name("results")
ROOT = Path(__file__).parents[2]
MEASURED = ("ddpdoctor", "checks")


@dataclass(frozen=True, slots=True)
class Shown:
    """What one step showed."""

    outcome: str
    """``right``, ``wrong``, or ``absent``: it does not exist there, and `text` says why."""
    text: str
    """For the cell of the table."""
    notes: tuple[str, ...] = ()
    """What was wrong, or cannot be had: one line each."""
    details: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    source: str = ""
    """`fingerprint` of what was measured."""


@dataclass(slots=True)
class Result:
    """What is known of one entry."""

    entry: Entry
    date: str = ""
    commit: str = ""
    why_not: str | None = None
    """Why it could not be run."""
    install_s: float = 0.0
    steps: dict[str, Shown] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether it could be run, and no step was wrong."""
        return self.why_not is None and all(shown.outcome != "wrong" for shown in self.steps.values())

    def keep(self, folder: Path = RESULTS) -> None:
        """Write it, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.entry.name}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")
        new.replace(path)


def read_result(entry: Entry, folder: Path = RESULTS) -> Result:
    """Return what is kept of an entry; nothing is known of one that was never run."""
    path = folder / f"{entry.name}.json"
    if not path.exists():
        return Result(entry)
    data = json.loads(path.read_text())
    steps = {name: make_shown(each) for name, each in data.pop("steps").items()}
    return Result(**{**data, "entry": entry, "steps": steps})


def make_shown(data: dict[str, Any]) -> Shown:
    """Return a step as its file has it."""
    return Shown(**{**data, "notes": tuple(data["notes"])})


def read_all(folder: Path = RESULTS) -> list[Result]:
    """Return all entries in the order of the table."""
    return [read_result(entry, folder) for entry in ENTRIES]


def fingerprint(root: Path = ROOT) -> str:
    """Return what changes with every line of ddpdoctor, so that only its own results are gone on from."""
    digest = hashlib.sha256()
    for path in sorted(path for part in MEASURED for path in (root / part).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
