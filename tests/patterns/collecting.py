"""Every regular expression of the product, wherever it stands."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ddpdoctor
import ddpdoctor_checks
from ddpdoctor.evidence.texts.entries import ENTRIES
from ddpdoctor.gather.secrets.shapes import MORE_PATTERNS, load_rules


class Use(NamedTuple):
    """A pattern and how it is used."""

    pattern: re.Pattern[Any]
    anchored: bool
    """It is only tried where a text begins."""
    whole: bool
    """It has to fit to the end."""


FOLDERS = ("ddpdoctor", "checks", "plugins")
FUNCTIONS = frozenset(
    {"compile", "search", "match", "fullmatch", "findall", "finditer", "sub", "split", "subn"}
)
ROOT = Path(ddpdoctor.__file__).parent.parent


def collect() -> dict[str, Use]:
    """Return the patterns by where they stand, and how they are used."""
    found: dict[str, re.Pattern[Any]] = {}
    for entry in ENTRIES:
        found[f"text {entry.id}"] = re.compile(entry.pattern)
        if entry.unless:
            found[f"text {entry.id} unless"] = re.compile(entry.unless)
    for rule in load_rules()[0]:
        found[f"gitleaks {rule.id}"] = re.compile(rule.pattern)
    for _, shape in MORE_PATTERNS:
        found[f"secret {shape[:40]}"] = re.compile(shape)
    known = {pattern.pattern for pattern in found.values()}
    for name, pattern in (*_of_modules(), *_of_calls()):
        if pattern.pattern not in known:
            known.add(pattern.pattern)
            found[name] = pattern
    return {name: Use(pattern, *_find_methods(name)) for name, pattern in found.items()}


@functools.cache
def _methods() -> dict[str, set[str]]:
    """Return by the name of a constant which methods of it are called; with an empty one where it is handed on."""
    found: dict[str, set[str]] = {}
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        text = path.read_text()
        for name, method in re.findall(r"\b(_?[A-Z][A-Z0-9_]{0,60})\.([a-z]{1,20})\(", text):
            found.setdefault(name, set()).add(method)
        for name in re.findall(r"[(,=] ?(_?[A-Z][A-Z0-9_]{0,60})\b(?![.(])", text):
            found.setdefault(name, set()).add("")
    return found


def _find_methods(name: str) -> tuple[bool, bool]:
    """Return whether a pattern is only tried where a text begins, and whether it must fit to its end."""
    if ".py:" in name:
        path, _, line = name.rpartition(":")
        used = set(re.findall(r"\bre\.(\w{1,20})\(", (ROOT / path).read_text().splitlines()[int(line) - 1]))
    elif name.startswith(("text ", "gitleaks ", "secret ")):
        used = {"search"}
    else:
        used = _methods().get(name.rpartition(".")[2].partition("[")[0], set()) & {*FUNCTIONS, ""}
    return bool(used) and used <= {"match", "fullmatch"}, used == {"fullmatch"}


def _of_modules() -> Iterator[tuple[str, re.Pattern[Any]]]:
    for package in (ddpdoctor, ddpdoctor_checks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".inject." in module.name or ".demos." in module.name or module.name.endswith("__main__"):
                continue
            for name, value in vars(importlib.import_module(module.name)).items():
                for number, each in enumerate(value if isinstance(value, (tuple, list)) else [value]):
                    if isinstance(each, re.Pattern):
                        yield f"{module.name}.{name}[{number}]", each


def _of_calls() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Yield what is compiled inside functions, and in what runs inside the job."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                    continue
                of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
                first = node.args[0]
                if of_re and node.func.attr in FUNCTIONS and isinstance(first, ast.Constant):
                    flags = 0
                    for each in ast.walk(node):
                        if (
                            isinstance(each, ast.Attribute)
                            and isinstance(each.value, ast.Name)
                            and each.value.id == "re"
                        ):
                            flags |= int(getattr(re, each.attr)) if each.attr.isupper() else 0
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", re.compile(first.value, flags)
