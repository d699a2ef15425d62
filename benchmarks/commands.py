"""How fast the commands that launch nothing answer, against an interpreter that does nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.timing import (
    Command,
    compare,
    describe_spread,
    find_script,
    median_cpu,
    median_seconds,
    run_in_turn,
    run_once,
)

NAME = "commands"
BAR_S = 0.1
"""For ``--help``, ``explain`` and ``list`` (table "Speed and scale" of the design)."""
ARGUMENTS = (("--help",), ("check", "--help"), ("explain", "NET001"), ("list",))
HEAVY = ("torch", "rich", "jinja2", "psutil")
"""Packages that none of these commands should import; only torch has a bar, the others cost 10-50 ms."""


def measure(folder: Path, rounds: int = 20) -> list[Figure]:
    """Time the commands in turn with ``python -c pass``, which runs twice for the gap of A against A.

    Raises:
        BenchmarkError: a command failed.
    """
    script = find_script("ddpdoctor")
    idle = (sys.executable, "-c", "pass")
    ours = [Command("ddpdoctor " + " ".join(words), (*script, *words)) for words in ARGUMENTS]
    runs = run_in_turn([Command("python", idle), *ours, Command("python again", idle)], rounds, folder)
    gap, spread = compare(runs["python again"], runs["python"])
    figures = [
        Figure(
            NAME, "python -c pass", median_seconds(runs["python"]), "s", None, describe_spread(runs["python"])
        ),
        Figure(NAME, "python -c pass against itself", gap, "", None, f"A/A gap, {spread}"),
    ]
    for command in ours:
        taken = runs[command.name]
        detail = f"{describe_spread(taken)}; {median_cpu(taken):.3g} s of processor"
        figures.append(Figure(NAME, command.name, median_seconds(taken), "s", BAR_S, detail))
    loaded = {command.name: list_heavy_imports(command, folder) for command in ours}
    count = sum("torch" in names for names in loaded.values())
    words = ", ".join(f"{name}: {' '.join(names)}" for name, names in loaded.items() if names)
    others = f"also imported: {words}" if words else f"none imports {', '.join(HEAVY[1:])} either"
    figures.append(Figure(NAME, "of these, commands that import torch", count, "", 1, others))
    return figures


def list_heavy_imports(command: Command, folder: Path) -> list[str]:
    """Return which of `HEAVY` a command imports, as Python itself logs it (``-X importtime``).

    Raises:
        BenchmarkError: the command failed.
    """
    logged = Command(command.name, command.argv, {**command.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    lines = run_once(logged, folder).output.splitlines()
    logged_lines = (line for line in lines if line.startswith("import time:"))
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in logged_lines}
    return [name for name in HEAVY if name in imported]
