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


SUMMARY = "finds the root cause when a PyTorch DDP job hangs, crashes or silently trains wrong"
COMMANDS: dict[str, tuple[str, str]] = {
    "check": (
        "ddpdoctor.cli.check",
        "launch a small multi-rank job and test the machine, network, collectives and DDP",
    ),
    "run": (
        "ddpdoctor.cli.run",
        "launch a script as torchrun would, watch it, and report which rank failed first and why",
    ),
    "attach": (
        "ddpdoctor.cli.attach",
        "diagnose a running (hung) job: which ranks wait for which, and where",
    ),
    "analyze": (
        "ddpdoctor.cli.analyze",
        "diagnose a finished job from logs, error files, Flight Recorder dumps or a run directory",
    ),
    "collect": ("ddpdoctor.cli.collect", "pack the logs, kernel log and device state of a node for analyze"),
    "lint": (
        "ddpdoctor.cli.lint",
        "statically analyze training scripts for DDP bugs (divergent collectives, unsharded data, ...)",
    ),
    "explain": ("ddpdoctor.cli.explain", "show the page of a finding, or search for an error message"),
    "list": ("ddpdoctor.cli.listing", "list all checks and which package provides each"),
    "demo": ("ddpdoctor.cli.demo", "run a small broken job to see a diagnosis and the corrected code"),
    "report": ("ddpdoctor.cli.report", "render a saved report in another format"),
    "completion": (
        "ddpdoctor.cli.completion",
        "print a shell script that completes commands and options",
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
  ddpdoctor check --nproc 4                       test this machine with four ranks
  ddpdoctor check --nproc 4 --html report.html    the same, with an HTML report to share
  ddpdoctor explain "NCCL timeout"                search for an error message
  ddpdoctor COMMAND --help                        options and examples of one command

exit codes: 0 no findings, 1 findings, 2 usage error, 3 ddpdoctor failed or the result is
inconclusive, 130 interrupted
"""
