"""What a command was asked for: its arguments, with the configuration file under them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ddpdoctor.cli.arguments.config import load_config
from ddpdoctor.cli.arguments.parsing import build_parser
from ddpdoctor.cli.commands import Command

EXCLUSIVE = (("formats", "outputs"), ("verbose", "quiet"), ("only", "skip"))
"""Options of which one on the command line replaces all of its group in the configuration."""


def parse_command(name: str, command: Command, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line, with the configuration under it: what is given on the line wins.

    Raises:
        UsageError: an unknown option, a bad value, or a bad configuration.
    """
    parser = build_parser(name, command)
    separate = getattr(command, "separate", None)
    own, split = separate(parser, arguments) if separate is not None else (arguments, None)
    given = vars(parser.parse_strictly(own))
    if split is not None:
        given["split"] = split
    configured = load_config(name, parser)
    for group in EXCLUSIVE:
        if any(key in given for key in group):
            configured = {key: value for key, value in configured.items() if key not in group}
    given["configured"] = frozenset(configured.keys() - given.keys())
    return argparse.Namespace(**{**configured, **given}, invocation=["ddpdoctor", name, *arguments])
