"""Options that several commands share, with one meaning everywhere."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ddpdoctor.cli.arguments.parsing import BadValue, add_option
from ddpdoctor.errors import UsageError
from ddpdoctor.text.suggest import closest

ENDINGS = {"txt": "text", "md": "markdown", "prom": "prometheus", "xml": "junit"}
"""Ending of a file -> format that it probably is, where that is no format's name."""
FAIL_ON = ("error", "warning", "never")
STDOUT = "-"
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
"""Units of a time on the command line, in seconds."""
MAX_TIME_S = 1e6
"""Eleven days; beyond some 4e9 seconds the waiting functions of Python overflow."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output that was asked for."""

    format: str
    path: str | None
    """A file, or None for stdout."""


class _Format(argparse.Action):
    """``--format NAME``, ``--json F`` and ``--html F`` in their order."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        formats = [*getattr(namespace, "formats", []), (self.const or values, values if self.const else None)]
        namespace.formats = formats


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add --format, -o, --json and --html."""
    group = parser.add_argument_group("outputs")
    group.add_argument(
        "--format",
        dest="formats",
        action=_Format,
        metavar="NAME",
        help=(
            "text (default), json, html, junit, sarif, github, markdown, prometheus, or a plugin's format; "
            "repeatable, at most one without a file"
        ),
    )
    group.add_argument(
        "-o",
        "--output",
        dest="outputs",
        action="append",
        metavar="F",
        help="output file for the corresponding --format (1st -o goes with 1st --format); - is stdout",
    )
    for name in ("json", "html"):
        group.add_argument(
            f"--{name}", action=_Format, dest="formats", const=name, metavar="F", help=f"--format {name} -o F"
        )


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add --select and --ignore."""
    group = parser.add_argument_group("findings")
    text = "codes, prefixes or names, comma-separated"
    group.add_argument(
        "--select", action="extend", type=split_words, metavar="C,...", help=f"show only these: {text}"
    )
    group.add_argument(
        "--ignore", action="extend", type=split_words, metavar="C,...", help=f"exclude these: {text}"
    )


def add_fail_option(
    parser: argparse.ArgumentParser,
    text: str = "exit 1 on findings of severity error (default) or warning, or never",
) -> None:
    """Add --fail-on.

    Args:
        parser: of a command.
        text: its help.
    """
    add_option(
        parser,
        "--fail-on",
        type=one_of("severity", FAIL_ON),
        metavar="S",
        help=text,
    )


def add_verbosity_options(parser: argparse.ArgumentParser) -> None:
    """Add -v, -q and --no-color."""
    group = parser.add_argument_group("verbosity")
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        help="show every check and why it was skipped; -vv adds ddpdoctor's own tracebacks",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="show only the verdict")
    add_option(
        group, "--no-color", action="store_true", help="no colors (or set NO_COLOR in the environment)"
    )


def verbosity(options: argparse.Namespace) -> int:
    """Return -1 for quiet, 0, 1 or 2."""
    if getattr(options, "quiet", False):
        return -1
    return min(2, getattr(options, "verbose", 0))


def pair_outputs(options: argparse.Namespace, known: Sequence[str]) -> tuple[Output, ...]:
    """Return the outputs that were asked for, each format with its file.

    Args:
        options: parsed options.
        known: names of the formats that there are.

    Raises:
        UsageError: an unknown format, more files than formats, or two outputs without a file.
    """
    files = list(getattr(options, "outputs", []))
    paired: list[Output] = []
    for name, path in getattr(options, "formats", []):
        if name not in known:
            raise unknown_word("--format", "format", name, known)
        chosen = path if path is not None else (files.pop(0) if files else STDOUT)
        if not chosen:
            raise UsageError(f"the file for --format {name} has an empty name")
        paired.append(Output(name, None if chosen == STDOUT else chosen))
    if files:
        guess = files[0].rsplit(".", 1)[-1]
        guess = ENDINGS.get(guess, guess)
        name = guess if guess in known else "json"
        raise UsageError(f"-o {files[0]} has no --format", hint=f"--format {name} -o {files[0]}")
    _reject_clashes(paired)
    return tuple(paired)


def _reject_clashes(paired: Sequence[Output]) -> None:
    unfiled = [output.format for output in paired if output.path is None]
    if len(unfiled) > 1:
        raise UsageError(
            f"{' and '.join(unfiled)} would both be written to stdout",
            hint=f"--format {unfiled[0]} -o FILE",
        )
    paths = [output.path for output in paired if output.path is not None]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(f"two outputs would be written to {path}")


def unknown_word(option: str, kind: str, word: str, known: Sequence[str]) -> UsageError:
    """Return the error for a word that is not one of ``known``."""
    near = closest(word, known)
    return UsageError(
        f"{option}: there is no {kind} {word!r}",
        context=f"choose from: {', '.join(known)}",
        hint=f"{option} {near}" if near else None,
    )


def split_words(text: str) -> list[str]:
    """Split a comma-separated value.

    Raises:
        BadValue: nothing is in it.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise BadValue("needs at least one value")
    return words


def one_of(kind: str, known: Sequence[str]) -> Callable[[str], str]:
    """Return an argparse type that takes one of ``known``."""

    def parse(text: str) -> str:
        if text in known:
            return text
        near = closest(text, known)
        raise BadValue(f"there is no {kind} {text!r}; choose from {', '.join(known)}", hint=near)

    return parse


def parse_seconds(text: str) -> float:
    """Read a time: ``90``, ``90s``, ``1.5m`` or ``2h``.

    Raises:
        BadValue: it is not a time above 0.
    """
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    factor = UNITS.get(text[len(number) :].strip())
    try:
        seconds = float(number) * (factor or math.nan)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_TIME_S:
        raise BadValue(f"{text!r} is not a time greater than 0", hint="seconds, such as 60, or 2m")
    return seconds


def parse_count(text: str) -> int:
    """Read a whole number of at least 1.

    Raises:
        BadValue: it is not one.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise BadValue(f"{text!r} is not a whole number of at least 1")
    return number
