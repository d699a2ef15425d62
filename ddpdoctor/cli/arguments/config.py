"""``[tool.ddpdoctor]`` of the nearest pyproject.toml: long options, a sub-table per command."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ddpdoctor.cli.arguments.parsing import Parser, build_parser
from ddpdoctor.cli.commands import COMMANDS, load_command
from ddpdoctor.errors import UsageError
from ddpdoctor.source.files.patterns import find_pyproject
from ddpdoctor.text.suggest import closest

TABLE = "tool.ddpdoctor"
PARSERS = ("tomllib", "tomli")
"""tomllib came with Python 3.11; tomli is the same as a distribution."""


def load_config(command: str, parser: Parser, start: Path | None = None) -> dict[str, Any]:
    """Return the configured options of ``command`` as parsed values.

    Args:
        command: name of the command; its sub-table wins over the common table.
        parser: the command's parser.
        start: directory from which to look upwards; None is the working directory.

    Raises:
        UsageError: the file cannot be read as TOML, or has a key or value that is not an option.
    """
    try:
        path = find_pyproject(start or Path.cwd())
    except FileNotFoundError as problem:
        raise UsageError(
            "the working directory no longer exists", hint="cd to an existing directory"
        ) from problem
    table = {} if path is None else read_table(path)
    if path is None or not table:
        return {}
    common = {key: value for key, value in table.items() if key not in COMMANDS}
    _reject_unknown(path, common)
    own = table.get(command, {})
    if not isinstance(own, dict):
        raise UsageError(f"{path}: [{TABLE}] {command} must be a table", hint=f"[{TABLE}.{command}]")
    known = {_key(name) for name in parser.option_names()} - {"help"}
    for key in own:
        if key not in known:
            raise _unknown_key(path, f"{TABLE}.{command}", key, known)
    settings = {**{key: value for key, value in common.items() if key in known}, **own}
    tokens = [token for key, value in settings.items() for token in _tokens(path, key, value, parser)]
    try:
        return vars(parser.parse_settings(tokens))
    except UsageError as problem:
        raise UsageError(f"{path} [{TABLE}]: {problem.message}", hint=problem.hint) from problem


def read_table(path: Path) -> dict[str, Any]:
    """Return ``[tool.ddpdoctor]``; empty when the file has none.

    Raises:
        UsageError: the file is not readable or not TOML, or this Python has no TOML reader.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"{path} cannot be read: {problem}", hint="save it as UTF-8 text") from problem
    if "ddpdoctor" not in text:
        return {}
    table = _parse_toml(path, text).get("tool", {}).get("ddpdoctor", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [{TABLE}] must be a table", hint=f"[{TABLE}]")
    return table


def _parse_toml(path: Path, text: str) -> dict[str, Any]:
    for name in PARSERS:
        try:
            parser = importlib.import_module(name)
        except ImportError:
            continue
        try:
            parsed: dict[str, Any] = parser.loads(text)
        except parser.TOMLDecodeError as problem:
            raise UsageError(f"{path} is not valid TOML: {problem}", hint="fix that line") from problem
        return parsed
    raise UsageError(
        f"{path} has settings for ddpdoctor, but reading TOML on Python 3.10 requires tomli",
        hint="pip install tomli",
    )


def _reject_unknown(path: Path, common: dict[str, Any]) -> None:
    """A key of the common table must be an option of some command, or a command."""
    known = {
        _key(option) for name in COMMANDS for option in build_parser(name, load_command(name)).option_names()
    }
    for key in common:
        if key not in known:
            raise _unknown_key(path, TABLE, key, known | set(COMMANDS))


def _unknown_key(path: Path, table: str, key: str, known: set[str]) -> UsageError:
    near = closest(key.replace("-", "_"), known)
    meant = f"[{TABLE}.{near}]" if near in COMMANDS else f"{near} = …"
    return UsageError(
        f"{path}: [{table}] has no setting {key!r}",
        hint=meant if near else f"one of: {', '.join(sorted(known - {'help'}))}",
    )


def _key(option: str) -> str:
    return option[2:].replace("-", "_")


def _tokens(path: Path, key: str, value: Any, parser: Parser) -> list[str]:
    """Return the command line that says the same as one setting."""
    option = "--" + key.replace("_", "-")
    takes_value = parser.takes_value(option)
    if isinstance(value, bool) or not takes_value:
        if takes_value or not isinstance(value, bool):
            what, example = ("a string or a number", '"…"') if takes_value else ("true or false", "true")
            raise UsageError(f"{path} [{TABLE}]: {key} must be {what}", hint=f"{key} = {example}")
        return [option] if value else []
    if isinstance(value, dict):
        return [f"{option}={name}={_join(path, key, item)}" for name, item in value.items()]
    items = value if isinstance(value, list) else [value]
    _reject_nested(path, key, items)
    return [f"{option}={item}" for item in items]


def _join(path: Path, key: str, value: Any) -> str:
    """Return an item of a table as it stands on the command line: a list has commas between its words."""
    items = value if isinstance(value, list) else [value]
    _reject_nested(path, key, items)
    return ",".join(map(str, items))


def _reject_nested(path: Path, key: str, items: list[Any]) -> None:
    if not all(isinstance(item, (str, int, float)) for item in items):
        raise UsageError(
            f"{path} [{TABLE}]: {key} must be a string, a number or a list of them", hint=f'{key} = "…"'
        )
