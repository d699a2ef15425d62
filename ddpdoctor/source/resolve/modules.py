"""Which file a module's name means, and what a name means that a module has from another one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from ddpdoctor.source.files.belonging import name_modules
from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.resolve.scopes import Scope

DEEPEST = 8
"""Modules over which a name is passed on."""


class Modules:
    """Finds the files of modules, and follows names through ``__init__.py`` and ``from x import *``.

    Args:
        modules: all files that are read together.
    """

    def __init__(self, modules: Iterable[Scope]) -> None:
        self._by_path: dict[str, Scope] = {}
        self._by_name: dict[str, Scope | None] = {}
        self._packages: set[str] = set()
        for module in modules:
            if module.script.name.endswith("/__init__.py"):
                self._packages.add(_name_whole(module.script.name))
            self._by_path[_name_whole(module.script.name)] = module
            for key in name_modules(module.script.name):
                self._by_name[key] = None if key in self._by_name else module  # two of one name: neither
        self._lasts = {key.rpartition(".")[2] for key in self._by_name}
        """Last parts of names of modules: most names that a file has are of none."""
        self._found: dict[tuple[str, Scope], Scope | None] = {}
        self._followed: dict[tuple[str, Scope], str] = {}
        self._starred: dict[Scope, tuple[Scope, ...]] = {}

    def find(self, name: str, module: Scope) -> Scope | None:
        """Return the file of a module.

        Args:
            name: as a file imports it, with the dots of a relative import.
            module: the file that imports it.
        """
        last = name.rpartition(".")[2]
        if last and last not in self._lasts:
            return None
        key = name, module
        if key not in self._found:
            self._found[key] = self._find(name, module)
        return self._found[key]

    def _find(self, name: str, module: Scope) -> Scope | None:
        own = PurePosixPath(module.script.name).parent
        level = len(name) - len(name.lstrip("."))
        parts = [part for part in name.lstrip(".").split(".") if part]
        if level:
            base = own
            for _ in range(level - 1):
                base = base.parent
            found = self._by_path.get(str(base.joinpath(*parts)))
            return found if found is not None or not parts else self._by_name.get(".".join(parts))
        if not parts:
            return None
        only = self._by_name.get(name)
        if only is not None:
            return only
        beside = self._by_path.get(str(own.joinpath(*parts)))
        if beside is not None and str(own) not in self._packages:
            return beside  # the folder of a script is where Python looks first
        near = {
            str(folder): found
            for folder in (own, *own.parents)
            if (found := self._by_path.get(str(folder.joinpath(*parts)))) is not None
        }
        # Python looks for what a package imports beside the package, not in it
        outside = [found for folder, found in near.items() if folder not in self._packages]
        there = outside or list(near.values())
        return there[0] if len(there) == 1 else None

    def find_home(self, name: str, module: Scope, depth: int = 0) -> tuple[Scope, str] | None:
        """Return the file in which something of a dotted name is defined, and what it is called there."""
        for _ in range(DEEPEST):
            above, _, last = name.rpartition(".")
            if not above.strip("."):
                above = name[: len(name) - len(last)]  # from . import train
            home = self.find(above, module)
            if home is None:
                return None
            if last in home.functions or last in home.classes or last in home.bound:
                return home, last
            passed = home.imports.get(last)
            if passed is None:
                return self.find_starred(last, home, depth)
            name, module = passed, home
        return None

    def follow(self, name: str, module: Scope) -> str:
        """Return what a file's name for something means, where a file that was read only passes it on.

        ``utils.dist.barrier`` is ``torch.distributed.barrier`` where ``utils.py`` imports ``torch.distributed`` as
        ``dist``. What stands in one of the files, or in none that was read, keeps its name.
        """
        key = name, module
        if key not in self._followed:
            self._followed[key] = self._follow(name, module)
        return self._followed[key]

    def _follow(self, name: str, module: Scope) -> str:
        known = name
        for _ in range(DEEPEST):
            step = self._pass_on(name, module)
            if step is None:
                break
            name, module = step
            if not name.startswith("."):
                known = name
        return known

    def _pass_on(self, name: str, module: Scope) -> tuple[str, Scope] | None:
        """Return the name that the nearest file on the way of a name has for it, and that file."""
        dots = name[: len(name) - len(name.lstrip("."))]
        parts = name.lstrip(".").split(".")
        for end in range(len(parts) - 1, 0, -1):
            spend()
            home = self.find(dots + ".".join(parts[:end]), module)
            if home is None:
                continue
            first = parts[end]
            if first in home.functions or first in home.classes or first in home.bound:
                return None
            passed = home.imports.get(first)
            return (".".join([passed, *parts[end + 1 :]]), home) if passed is not None else None
        return None

    def list_starred(self, module: Scope) -> tuple[Scope, ...]:
        """Return the files all of whose names a file imports, those of the last import first."""
        if module not in self._starred:
            named = [name for name in reversed(module.imports.values()) if name.endswith(".*")]
            files = [self.find(name.removesuffix("*").removesuffix(".") or ".", module) for name in named]
            self._starred[module] = tuple(each for each in files if each is not None)
        return self._starred[module]

    def find_starred(self, last: str, module: Scope, depth: int = 0) -> tuple[Scope, str] | None:
        """Return the file that defines what a file has by ``from x import *``, and its name there."""
        waiting, seen = list(self.list_starred(module)), {module}
        while waiting:
            home = waiting.pop(0)
            if home in seen:
                continue
            seen.add(home)
            if last in home.functions or last in home.classes or last in home.bound:
                return home, last
            if last in home.imports and depth < DEEPEST:
                return self.find_home(home.imports[last], home, depth + 1)
            waiting += self.list_starred(home)
        return None


def _name_whole(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__")
