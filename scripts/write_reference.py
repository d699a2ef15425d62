"""Writes what docs/reference repeats of the program: its command line, and the fields and an example of its report.

``python scripts/write_reference.py`` writes it; with ``--check`` it exits with 1 where that is not up to date. In a
page that is written by hand the made part lies between ``<!-- made: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ddpdoctor.cli import main
from ddpdoctor.cli.arguments.parsing import Parser, build_parser
from ddpdoctor.cli.commands import COMMANDS, load_command
from ddpdoctor.report import schema as schemas

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
EXAMPLE = ROOT / "ddpdoctor" / "cli" / "demos" / "guarded-collective"
WIDTH = "100"
"""Columns of a help text: those of a code block on a wide screen."""


def make_cli() -> str:
    """Return the page of the command line: what ``--help`` prints, and which options are settings too."""
    text = (
        "# Command line\n\nMade from the help of the program; `ddpdoctor COMMAND --help` prints it. Each long option "
        "is also a setting of [pyproject.toml](configuration.md).\n\n| command | |\n|---|---|\n"
    )
    text += "".join(f"| [`{name}`](#{name}) | {summary} |\n" for name, (_, summary) in COMMANDS.items())
    for name in COMMANDS:
        parser = build_parser(name, load_command(name))
        text += f"\n## {name}\n\n```\n{_help(parser)}\n```\n"
    return text


def _help(parser: Parser) -> str:
    lines = [line.rstrip() for line in parser.format_help().strip().splitlines()]
    return "\n".join(lines)


def make_fields() -> str:
    """Return tables of the fields of a report, of its verdict and of a finding."""
    schema = json.loads((Path(schemas.__file__).parent / schemas.SCHEMA_FILE).read_text(encoding="utf-8"))
    parts = [
        ("The report", schema),
        ("`verdict`", schema["$defs"]["verdict"]),
        ("One of `findings`", schema["$defs"]["finding"]),
        ("One of `where` in a finding", schema["$defs"]["place"]),
        ("One of `fix` in a finding", schema["$defs"]["fix"]),
        ("One of `checks`", schema["$defs"]["check"]),
    ]
    return "\n".join(
        f"### {title}\n\n| field | type | |\n|---|---|---|\n{_rows(part)}" for title, part in parts
    )


def _rows(part: dict[str, Any]) -> str:
    required = part.get("required", ())
    rows = []
    for name, field in part["properties"].items():
        about = field.get("description", "")
        rows.append(f"| `{name}` | {_type(field)}{'' if name in required else ', optional'} | {about} |\n")
    return "".join(rows)


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    kinds = field.get("type", "any")
    text = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    return f"array of {_type(field['items'])}" if text == "array" and "items" in field else text


def make_example() -> str:
    """Return the first finding of a real report, and what is around it, as JSON."""
    before, text = Path.cwd(), io.StringIO()
    os.chdir(EXAMPLE)
    try:
        with redirect_stdout(text):
            main(["lint", "train.py", "--json", "-"])
    finally:
        os.chdir(before)
    report = json.loads(text.getvalue())
    kept = {name: report[name] for name in ("schema", "schema_version", "command", "verdict", "findings")}
    return f"```json\n{json.dumps(kept, indent=2, ensure_ascii=False)}\n```\n"


def make_pages() -> dict[Path, str]:
    """Return the whole text of each page that has a made part."""
    os.environ["COLUMNS"] = WIDTH
    report = REFERENCE / "report.md"
    text = report.read_text(encoding="utf-8")
    for name, make in (("fields", make_fields), ("example", make_example)):
        begin, end = f"<!-- made: {name} -->", "<!-- end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{make()}\n{end}{rest.partition(end)[2]}"
    return {REFERENCE / "cli.md": make_cli(), report: text}


def run() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for page, text in make_pages().items():
        old = page.read_text(encoding="utf-8") if page.exists() else ""
        if check and old != text:
            sys.exit(f"{page.relative_to(ROOT)} is not up to date: python scripts/write_reference.py")
        if not check:
            page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run()
