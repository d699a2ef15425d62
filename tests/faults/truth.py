"""The ground truth of a broken script: ``truth.toml`` beside it, and the markers in its source."""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    from tomllib import loads
else:
    from tomli import loads

CASES = Path(__file__).with_name("cases")
OURS = ("--stall-after", "--hang-timeout", "--on-hang", "--rerun")
"""Options with a value that torchrun does not have."""
MARKER = "# culprit"
"""Ends each line that may be named; one is enough."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What is wrong with one case, and how it is launched. A key of truth.toml is a field of this name."""

    name: str
    folder: Path
    about: str
    launch: tuple[str, ...]
    """Arguments of `ddpdoctor run`; the folder is the working directory."""
    code: str = ""
    """The first finding's code; empty for a healthy job."""
    accept: tuple[str, ...] = ()
    """Codes that are right as well, where the catalogue leaves a choice."""
    beside: tuple[str, ...] = ()
    """Codes that must be found as well."""
    also: tuple[str, ...] = ()
    """Codes that may be found and are no false alarm."""
    ranks: tuple[int, ...] | None = None
    """The culprits; None where the truth is that nobody can be named or that no rank is the root cause."""
    some: bool = False
    """Any of the ranks will do: they fail at the same time, and the launcher may end one before it speaks."""
    victims: tuple[int, ...] = ()
    """Ranks that must not be blamed."""
    mentions: tuple[str, ...] = ()
    """Texts that the finding has to carry: parameter names, a port, a limit."""
    exit: int = 0
    """Exit code, under torchrun and under `run`."""
    says: str = ""
    """Text that the job itself prints; shows that the case fails as it says."""
    hangs: bool = False
    """Without ddpdoctor it stands still for ever."""
    wrap: tuple[str, ...] = ()
    """Words that go before the command: a smaller limit, a mount, a listener."""
    needs: tuple[str, ...] = ()
    """root, cgroup1, cpu (a torch without CUDA), torch-2.13 (or newer)."""
    lines: tuple[tuple[str, int], ...] = ()
    """(file relative to the folder, line) of the markers."""

    @property
    def codes(self) -> tuple[str, ...]:
        """Every code that is right as the first."""
        return (self.code, *self.accept)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.code

    @property
    def waits(self) -> bool:
        """Whether it spends most of its time waiting: such cases can run beside each other."""
        return self.hangs or "--stall-after" in self.launch

    def make_plain_command(self) -> list[str]:
        """Return the command without ddpdoctor: the user's own, or torchrun with the same options."""
        own = _leave_out_ours(self.launch)
        if own[0] == "--":
            return [*self.wrap, *own[1:]]
        words = ["--nproc-per-node" if word == "--nproc" else word for word in own]
        return [*self.wrap, sys.executable, "-m", "torch.distributed.run", *words]


def _leave_out_ours(launch: tuple[str, ...]) -> list[str]:
    words: list[str] = []
    rest = iter(launch)
    for word in rest:
        if word in OURS:
            next(rest)
        else:
            words.append(word)
    return words


HALVES = ("seen", "unseen")
"""Of cases that were written before the rules."""


def find_half(name: str) -> str:
    """Return to which of `HALVES` a case belongs, which its name alone decides."""
    return HALVES[zlib.crc32(name.encode()) % 2]


def load_truth(folder: Path) -> Truth:
    """Read one case.

    Raises:
        TypeError: truth.toml has a key that is none of `Truth`.
    """
    data: dict[str, Any] = loads((folder / "truth.toml").read_text())
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
    }
    return Truth(name=folder.name, folder=folder, lines=_find_markers(folder), **values)


def load_all() -> list[Truth]:
    """Return all cases, by code, the healthy ones last."""
    truths = [load_truth(path.parent) for path in CASES.glob("*/truth.toml")]
    return sorted(truths, key=lambda truth: (truth.is_healthy, truth.code, truth.name))


def _find_markers(folder: Path) -> tuple[tuple[str, int], ...]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.rstrip().endswith(MARKER):
                found.append((str(path.relative_to(folder)), number))
    return tuple(found)
