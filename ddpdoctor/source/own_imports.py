"""The files of one program: a script and what it imports from its own directory, read without importing anything."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ddpdoctor.source.files.reading import Script, read_script
from ddpdoctor.source.gather import name_path

MOST_FILES = 200
LIMIT_S = 3.0
"""Seconds for reading: `run` does it beside a job that starts."""


def read_program(script: Path, root: Path) -> list[Script]:
    """Return a script and the modules that it imports, directly or through others, which lie below one directory.

    Args:
        script: the file that is started.
        root: where Python looks for modules first: the directory of a script, the working directory for ``-m``.
    """
    found: dict[Path, Script] = {}
    waiting, until = [script], time.monotonic() + LIMIT_S
    while waiting and len(found) < MOST_FILES and time.monotonic() < until:
        path = waiting.pop(0)
        if path in found:
            continue
        read = found[path] = read_script(path, name_path(path), whatever=True)
        if read.tree is not None:
            waiting += [each for each in _find_imports(read.tree, path, root) if each not in found]
    return list(found.values())


def _find_imports(tree: ast.Module, path: Path, root: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = root
            for _ in range(node.level):
                base = path.parent if base is root else base.parent
            module = node.module or ""
            names = [(base, f"{module}.{alias.name}".strip(".")) for alias in node.names]
            names += [(base, module)] if module else []
        else:
            continue
        for base, name in names:
            yield from _find_module(base, name)


def _find_module(base: Path, name: str) -> Iterator[Path]:
    """Yield the files of a module and of the packages around it."""
    *packages, last = name.split(".")
    for depth in range(1, len(packages) + 1):
        inside = base.joinpath(*packages[:depth], "__init__.py")
        if os.path.isfile(inside):
            yield inside
    whole = base.joinpath(*packages)
    for path in (whole / f"{last}.py", whole / last / "__init__.py"):
        if os.path.isfile(path):
            yield path
