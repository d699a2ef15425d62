"""How the hook in a job's processes is built: rooms of modules, each on those below it, and no circle among modules.

import-linter does not see it: it is no package of ours but one that the processes of a job find on their path.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watch.injecting import INJECT, python

PACKAGE = INJECT / "ddpdoctor_watch"
LAYERS = (("core",), ("calls", "interpreter"), ("models",), ("training", "nodes"), ("",))
"""The rooms, the lowest first; the last one is what stands beside them. Those of one layer do not know each other."""
FEW = 15
"""Modules and packages of ours that a process without torch has loaded: each costs a tenth of a millisecond at the start
of every Python process of a job."""


def read_imports(package: Path) -> dict[str, set[str]]:
    """Return for each module of a package which others it imports, also inside of functions and for types alone."""
    paths = {_name(path.relative_to(package)): path for path in sorted(package.rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        here = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = _list_imports(ast.parse(path.read_text()), here)
        graph[name] = {each for each in found if each in paths and each != name}
    return graph


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _list_imports(tree: ast.Module, here: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = here.split(".")[: -(node.level - 1) or None] if here else []
            base = ".".join([*above, *(node.module.split(".") if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of a circle; none where there is none. The package itself is imported by all that is in it."""
    try:
        graphlib.TopologicalSorter({name: found - {""} for name, found in graph.items()}).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def find_upward(graph: dict[str, set[str]]) -> list[str]:
    """Return imports of a room that is not below."""
    height = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    names = [(name, found) for name, founds in graph.items() for found in sorted(founds - {""})]
    rooms = [(f"{name} -> {found}", _room(name), _room(found)) for name, found in names]
    return [text for text, own, other in rooms if own != other and height[other] >= height[own]]


def _room(name: str) -> str:
    room, _, rest = name.partition(".")
    return room if rest or (PACKAGE / room).is_dir() else ""


def test_the_modules_of_the_hook_make_no_circle() -> None:
    graph = read_imports(PACKAGE)
    assert "core.journal" in graph["interpreter.faults"]
    assert "core.remote" in graph["core.describe"], "also what is imported inside of a function"
    assert find_circle(graph) == []


def test_the_rooms_of_the_hook_build_on_those_below() -> None:
    graph = read_imports(PACKAGE)
    assert {_room(name) for name in graph} == {room for rooms in LAYERS for room in rooms}
    assert find_upward(graph) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    for name, text in {
        "core/a.py": "def late():\n    from ..models import b\n",
        "models/b.py": "from ..core.c import x\n",
        "core/c.py": "from . import a\n",
        "core/__init__.py": "",
        "models/__init__.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    graph = read_imports(tmp_path)
    assert set(find_circle(graph)) == {"core.a", "models.b", "core.c"}
    assert find_upward(graph) == ["core.a -> models", "core.a -> models.b"]


@pytest.mark.parametrize("more", ["", "import threading, multiprocessing, traceback\n"])
def test_a_process_without_torch_loads_little_of_the_hook(tmp_path: Path, more: str) -> None:
    done = python(
        tmp_path,
        f"{more}import sys\nprint(*[each for each in sys.modules if each.startswith('ddpdoctor_watch')])",
    )
    loaded = done.stdout.split()
    assert "ddpdoctor_watch.core.journal" in loaded
    assert {_room(name.partition(".")[2]) for name in loaded} <= {"", "core", "interpreter"}
    assert len(loaded) <= FEW + bool(more), loaded
