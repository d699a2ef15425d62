"""The rows of the matrix, and the interpreter of each."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TORCHES = (
    "2.4.1",
    "2.5.1",
    "2.6.0",
    "2.7.1",
    "2.8.0",
    "2.9.1",
    "2.10.0",
    "2.11.0",
    "2.12.1",
    "2.13.0",
    "2.14.1",
    "2.15.0",
)
"""The last release of each minor version, from the oldest that pyproject.toml allows."""
PYTHON = "3.11"
"""Every torch is tried on this one: each of these has wheels for it."""
OTHER_PYTHONS = ("3.10", "3.12", "3.13")
"""The version that development uses is tried on these as well."""
DEVELOPED = "2.13.0"


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One environment."""

    torch: str
    python: str

    @property
    def name(self) -> str:
        """What options and files call it: ``2.13.0-py3.11``."""
        return f"{self.torch}-py{self.python}"


ENTRIES = (
    *(Entry(torch, PYTHON) for torch in TORCHES),
    *(Entry(DEVELOPED, python) for python in OTHER_PYTHONS),
)


def choose_entries(wanted: Sequence[str]) -> list[Entry]:
    """Return the entries that are meant, in the order in which they are to run: from both ends to the middle.

    Args:
        wanted: names, or versions of torch (``2.4.1``, ``2.4``); none means all.

    Raises:
        ValueError: a word that means no entry.
    """
    for word in wanted:
        if not any(_is_meant(entry, word) for entry in ENTRIES):
            raise ValueError(f"no entry {word}; there are {', '.join(entry.name for entry in ENTRIES)}")
    meant = [entry for entry in ENTRIES if not wanted or any(_is_meant(entry, word) for word in wanted)]
    # Versions differ most at the corners: a run that is cut short has seen these.
    order: list[Entry] = []
    main = [entry for entry in meant if entry.python == PYTHON]
    while main:
        order.append(main.pop(0))
        if main:
            order.append(main.pop())
    return order + [entry for entry in meant if entry.python != PYTHON]


def _is_meant(entry: Entry, word: str) -> bool:
    return word in (entry.name, entry.torch, entry.torch.rpartition(".")[0])


def find_python(version: str) -> str | None:
    """Return an interpreter of that minor version, from PATH or from pyenv; None where there is none."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [shutil.which(f"python{version}")]
    found += [str(path) for path in sorted(root.glob(f"{version}.*/bin/python{version}"), reverse=True)]
    return next((path for path in found if path and _answers(path)), None)


def _answers(python: str) -> bool:
    """Whether it starts: pyenv puts a script there for versions that are not switched on."""
    try:
        return (
            subprocess.run([python, "-c", "import ensurepip"], capture_output=True, timeout=60).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
