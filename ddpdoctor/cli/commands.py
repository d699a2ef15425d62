"""The table of commands. Nothing of a command is imported before it is called."""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

from ddpdoctor import __version__


class Command(Protocol):
    """What a module of this package must have to be a command."""

    EXAMPLES: tuple[tuple[str, str], ...]
    """(command line, what it does), shown by ``--help``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options; none may have a default other than "was not given"."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Do it and return the exit code."""
        ...


SUMMARY = "names the cause when a PyTorch DDP job does not work"
COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("ddpdoctor.cli.check", "launch a tiny world and examine machine, network, collectives and DDP"),
    "run": ("ddpdoctor.cli.run", "launch a script as torchrun would, watch it, and name what broke first"),
    "attach": ("ddpdoctor.cli.attach", "examine a job that already runs: who waits for whom, and where"),
    "analyze": ("ddpdoctor.cli.analyze", "say what ended a job from its logs, error files or run directory"),
    "collect": ("ddpdoctor.cli.collect", "pack logs, kernel log and device state of a node for analyze"),
    "lint": ("ddpdoctor.cli.lint", "read training scripts: collectives that some ranks never reach"),
    "explain": ("ddpdoctor.cli.explain", "show the page of a finding"),
    "list": ("ddpdoctor.cli.listing", "show all checks and where each comes from"),
    "demo": ("ddpdoctor.cli.demo", "run a small broken job, to see a diagnosis and the corrected code"),
    "report": ("ddpdoctor.cli.report", "render a saved report again"),
    "completion": (
        "ddpdoctor.cli.completion",
        "print a script that completes commands and options in a shell",
    ),
}
"""Name -> (module, summary), in the order of the help."""


def load_command(name: str) -> Command:
    """Import the module of a command of the table."""
    return cast(Command, importlib.import_module(COMMANDS[name][0]))


def render_help() -> str:
    """Return the text of ``ddpdoctor --help``."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}   {summary}" for name, (_, summary) in COMMANDS.items())
    return f"""ddpdoctor {__version__}: {SUMMARY}

usage: ddpdoctor COMMAND [options]

commands:
{rows}

examples:
  ddpdoctor check --nproc 4                       examine this machine with four ranks
  ddpdoctor check --nproc 4 --html report.html    the same, and a page to send to a colleague
  ddpdoctor explain port-in-use                   what a finding means and what to do
  ddpdoctor COMMAND --help                        options and examples of one command

exit codes: 0 nothing found, 1 findings, 2 usage, 3 ddpdoctor failed or could not look,
130 interrupted
"""
