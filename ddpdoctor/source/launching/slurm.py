"""What a batch script asks Slurm for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus", "-w": "nodelist", "-c": "cpus-per-task"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Resources, each with the line that asks for it; None where the script does not say a number."""

    options: Mapping[str, tuple[str, int]]

    def number(self, name: str) -> int | None:
        """Return the value of an option that is one number."""
        text = self.options.get(name, ("", 0))[0]
        low, dash, high = text.partition("-")
        return int(low) if low.isascii() and low.isdigit() and (not dash or high == low) else None

    def line(self, *names: str) -> int:
        """Return the line of the first of some options that is given; 0 where none is."""
        return next((self.options[name][1] for name in names if name in self.options), 0)

    @property
    def gpus(self) -> tuple[int, int] | None:
        """The GPUs of a node, and the line that says so."""
        for name in ("gpus-per-node", "gres"):
            if name in self.options:
                text, line = self.options[name]
                parts = [part for part in text.split(",") if name != "gres" or part.startswith("gpu")]
                match = (
                    re.fullmatch(r"(?:[A-Za-z_][\w.-]*:){0,2}(\d+)(?:\(.*\))?", parts[0])
                    if len(parts) == 1
                    else None
                )
                return (int(match[1]), line) if match is not None else None
        return None


def read_directives(directives: Iterable[tuple[str, int]]) -> Asked:
    """Return what ``#SBATCH`` lines ask for; nothing of a job with parts of different kinds.

    Args:
        directives: their arguments, each with its line.
    """
    found: dict[str, tuple[str, int]] = {}
    for text, line in directives:
        try:
            words = shlex.split(text)
        except ValueError:
            continue
        while words:
            word = words.pop(0)
            if word == "hetjob":
                return Asked({})
            if not word.startswith("-"):
                continue
            name, given, value = word.partition("=")
            if not name.startswith("--"):
                name, value = SHORT.get(name[:2], ""), value if given else name[2:]
                given = value
            if not given and words and not words[0].startswith("-"):
                value = words.pop(0)
            found[name.lstrip("-")] = (value, line)
    return Asked(found)
