"""Files that mention no distributed library but belong to a program that does: what they hold counts as well."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddpdoctor.source.files.reading import Script, read_script
from ddpdoctor.source.files.statements import walk_statements


def read_imported(scripts: dict[str, Script], paths: Mapping[str, Path]) -> None:
    """Read also what the scripts import of the files that were passed over, directly or through others.

    Args:
        scripts: name -> script, in which they are replaced.
        paths: name -> file.
    """
    waiting = [script for script in scripts.values() if not script.unrelated and script.tree is not None]
    over: dict[str, list[str]] = {}
    for name, script in scripts.items():
        if script.unrelated and name in paths:
            for key in name_modules(name):
                over.setdefault(key, []).append(name)
    while waiting and over:
        script = waiting.pop()
        for key in _list_imports(script):
            for name in over.pop(key, ()):
                if scripts[name].unrelated:
                    scripts[name] = read_script(paths[name], name, whatever=True)
                    waiting.append(scripts[name])


def name_modules(name: str) -> Iterator[str]:
    """Yield the names under which a file may be imported, by the folder from which Python looks for it."""
    parts = name.removesuffix(".py").removesuffix("/__init__").split("/")
    yield from (".".join(parts[start:]) for start in range(len(parts)))


def _list_imports(script: Script) -> set[str]:
    """Return the names of all modules that a script imports, with the packages around them.

    What it imports relative to itself, and what has a name of the standard library, is named by its whole path: a
    ``logging.py`` of any other folder is none of it.
    """
    found: set[str] = set()
    here = script.name.split("/")[:-1]
    for node in walk_statements(script.tree) if script.tree is not None else ():
        base: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
            base = here[: len(here) - node.level + 1] if node.level else []
        else:
            continue
        for name in names:  # importing a module runs the packages around it too
            parts = name.split(".") if name else []
            own = base or (here if parts and parts[0] in sys.stdlib_module_names else [])
            found.update(".".join((*own, *parts[:end])) for end in range(not own, len(parts) + 1))
    return found
