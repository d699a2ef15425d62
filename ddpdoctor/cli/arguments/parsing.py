"""Parsing a command's arguments: argparse with messages of ours."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from ddpdoctor.cli.commands import COMMANDS, Command
from ddpdoctor.errors import UsageError
from ddpdoctor.text.suggest import closest


class BadValue(argparse.ArgumentTypeError):
    """An option's value is wrong.

    Args:
        message: what is wrong with it.
        hint: what to type instead; None refers to the command's help.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that shows one spelling of options that also have an underscore form."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = [text for text in action.option_strings if "_" not in text]
        if not shown:
            return super()._format_action_invocation(action)
        value = "" if action.nargs == 0 else f" {self._format_args(action, (action.dest or '').upper())}"
        return ", ".join(shown) + value


class Parser(argparse.ArgumentParser):
    """argparse whose errors are `UsageError` with a suggestion.

    Options that were not given are absent from the namespace, so that the configuration can be laid under it.
    """

    def __init__(self, command: str) -> None:
        super().__init__(
            prog=f"ddpdoctor {command}",
            formatter_class=_Formatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            exit_on_error=False,
        )
        self.command = command

    def parse_strictly(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all of ``arguments``.

        Raises:
            UsageError: an unknown option or a bad value.
        """
        try:
            options, unknown = self.parse_known_args(arguments)
        except argparse.ArgumentError as problem:
            raise self._explain(problem) from problem
        if unknown:
            raise self._explain_unknown(unknown[0])
        return options

    def parse_settings(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse options alone: what the command line has to have beside them is not asked for.

        Raises:
            UsageError: an unknown option or a bad value.
        """
        asked = [action for action in self._actions if action.required]
        for action in asked:
            action.required = False
        try:
            return self.parse_strictly(arguments)
        finally:
            for action in asked:
                action.required = True

    def print_help(self, file: object = None) -> None:
        """Print the help to stdout, where a full disk is noticed.

        Raises:
            OutputError: stdout is closed or full.
        """
        from ddpdoctor.cli.output.display import print_text

        print_text(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting.

        Raises:
            UsageError: always.
        """
        raise UsageError(message, hint=f"{self.prog} --help")

    def _explain(self, problem: argparse.ArgumentError) -> UsageError:
        option = (problem.argument_name or "").split("/")[0]
        hint = getattr(problem.__context__, "hint", None)
        text = f"{option}: {problem.message}" if option else problem.message
        return UsageError(text, hint=hint or f"{self.prog} --help")

    def _explain_unknown(self, word: str) -> UsageError:
        if not word.startswith("-"):
            return UsageError(f"unexpected argument {word!r}", hint=f"{self.prog} --help")
        option = word.split("=")[0]
        near = closest(option, (text for text in self.option_names()))
        return UsageError(
            f"{self.prog} has no option {option}",
            hint=f"{self.prog} {near}" if near else f"{self.prog} --help",
        )

    def option_names(self) -> list[str]:
        """Return all long options in their spelling with hyphens."""
        return [
            text
            for action in self._actions
            for text in action.option_strings
            if text.startswith("--") and "_" not in text
        ]

    def actions(self) -> list[argparse.Action]:
        """Return what was declared."""
        return list(self._actions)

    def takes_value(self, option: str) -> bool:
        """Whether a long option of this parser is followed by a value."""
        return any(option in action.option_strings and action.nargs != 0 for action in self._actions)


def both_spellings(*flags: str) -> tuple[str, ...]:
    """Return the flags and their forms with underscores, which torchrun takes too."""
    extra = ["--" + flag[2:].replace("-", "_") for flag in flags if flag.startswith("--") and "-" in flag[2:]]
    return (*flags, *extra)


def add_option(group: argparse._ActionsContainer, *flags: str, **settings: Any) -> None:
    """Add an option in both spellings; its dest comes from the first long flag unless given."""
    group.add_argument(*both_spellings(*flags), **settings)


def build_parser(name: str, command: Command) -> Parser:
    """Return the whole parser of one command."""
    parser = Parser(name)
    parser.description = COMMANDS[name][1]
    command.add_arguments(parser)
    examples = "\n".join(f"  {line}\n      {what}" for line, what in command.EXAMPLES)
    parser.epilog = f"examples:\n{examples}"
    return parser
