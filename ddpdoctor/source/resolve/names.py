"""What names mean: imports, functions, classes and what variables are bound to, in the files that are read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.files.reading import Script
from ddpdoctor.source.resolve.modules import Modules
from ddpdoctor.source.resolve.objects import Objects
from ddpdoctor.source.resolve.scopes import UNKNOWN, FunctionNode, Scope, build_scope
from ddpdoctor.source.resolve.walking import AGAIN, find_calls

__all__ = ["UNKNOWN", "Files", "FunctionNode", "Scope", "name_calls"]


class Files:
    """All scripts that are read together."""

    def __init__(self, scripts: Iterable[Script]) -> None:
        self.modules: list[Scope] = []
        self.kept: dict[object, Any] = {}
        for script in scripts:
            if script.tree is not None:
                self.modules.append(build_scope(script, script.tree, None, None))
        self._related: dict[Scope, set[Scope]] = {}
        self._imported: dict[Scope, frozenset[Scope]] = {}
        self._homes = Modules(self.modules)
        self._dotted: dict[tuple[ast.expr, Scope], str | None] = {}
        self.objects = Objects(
            self.modules, self.find_class, self._by_plain_name, self.dotted, self.find_bound
        )
        self.find_reduced: Callable[[Scope], set[str]] = _find_none
        """Returns the variables of a function that a collective has made equal on all ranks."""
        self._named: dict[Scope, tuple[tuple[ast.Call, str], ...]] = {}
        self._defined: dict[tuple[str, Scope], tuple[Scope, str] | None] = {}
        self._functions: dict[tuple[ast.expr, Scope], Scope | None] = {}
        self._plain: dict[tuple[ast.expr, Scope], Scope | None] = {}

    def dotted(self, node: ast.expr, scope: Scope) -> str | None:
        """Return ``torch.distributed.barrier`` for what a file calls ``dist.barrier``; None for other expressions."""
        spend()
        key = node, scope
        try:
            return self._dotted[key]
        except KeyError:
            found = self._dotted[key] = self._find_dotted(node, scope)
            return found

    def _find_dotted(self, node: ast.expr, scope: Scope) -> str | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        name = node.id
        for each in scope.outwards():
            if name in each.imports:
                whole = ".".join([each.imports[name], *reversed(parts)])
                return self._homes.follow(whole, scope.module)
            if name in each.bound and not isinstance(each.node, (ast.Module, ast.ClassDef)):
                break  # a variable of the function hides it
        return ".".join([name, *reversed(parts)])

    def name_calls(self, scope: Scope) -> tuple[tuple[ast.Call, str], ...]:
        """Return the calls that stand in a scope itself with their dotted names, in order of the lines."""
        known = self._named.get(scope)
        if known is None:
            known = tuple((call, self.dotted(call.func, scope) or "") for call in find_calls(scope))
            self._named[scope] = known
        else:
            spend(1 + len(known) // AGAIN)
        return known

    def function(self, call: ast.expr, scope: Scope) -> Scope | None:
        """Return the function that is called, where it stands in one of the files."""
        key = call, scope
        if key not in self._functions:
            self._functions[key] = self._find_function(call, scope)
        return self._functions[key]

    def _find_function(self, call: ast.expr, scope: Scope) -> Scope | None:
        found = self._by_plain_name(call, scope)
        if found is not None:
            return found
        if isinstance(call, ast.Attribute) and isinstance(call.value, (ast.Name, ast.Attribute, ast.Call)):
            made = self.objects.find_made(call.value, scope)
            if made is not None:
                return self.objects.method(made, call.attr)
        if isinstance(call, (ast.Name, ast.Attribute)) and self.find_class(call, scope) is None:
            made = self.objects.find_made(call, scope)  # an object that is called
            if made is not None:
                # a class with ``forward`` alone inherits ``__call__`` from torch.nn.Module, which calls it
                return self.objects.method(made, "__call__") or self.objects.method(made, "forward")
        return None

    def _by_plain_name(self, call: ast.expr, scope: Scope) -> Scope | None:
        """Return a function by its name, a method by ``self``; nothing else is asked for its class."""
        key = call, scope
        if key not in self._plain:
            self._plain[key] = self._find_by_plain_name(call, scope)
        return self._plain[key]

    def _find_by_plain_name(self, call: ast.expr, scope: Scope) -> Scope | None:
        if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name):
            if call.value.id in ("self", "cls"):
                owner = scope.find_class()
                return self.objects.own_method(owner, call.attr) if owner is not None else None
            home = scope.lookup(call.value.id)
            if home is not None and home[1] == [UNKNOWN] and call.value.id in home[0].parameters:
                return None
        above = self.objects.super_method(call, scope)
        if above is not None:
            return above
        name = self.dotted(call, scope)
        if name is None:
            return None
        for each in scope.visible():
            if name in each.functions:
                return each.functions[name]
        found = self._find_named(name, scope)
        if found is None and "." in name:  # Trainer.make(...)
            owner_name, _, last = name.rpartition(".")
            found_class = self._class_named(owner_name, scope)
            return self.objects.method(found_class, last) if found_class is not None else None
        return found[0].functions.get(found[1]) if found is not None else None

    def find_class(self, name: ast.expr, scope: Scope) -> Scope | None:
        """Return the class that an expression names, where it stands in one of the files."""
        called = self.dotted(name, scope)
        return self._class_named(called, scope) if called is not None else None

    def _class_named(self, called: str, scope: Scope) -> Scope | None:
        for each in scope.visible():
            if called in each.classes:
                return each.classes[called]
        found = self._find_named(called, scope)
        return found[0].classes.get(found[1]) if found is not None else None

    def _find_named(self, name: str, scope: Scope) -> tuple[Scope, str] | None:
        """Return the file in which something of a dotted name is defined, and its name there."""
        key = name, scope.module
        if key not in self._defined:
            find = self._homes.find_home if "." in name else self._homes.find_starred
            self._defined[key] = find(*key)
        return self._defined[key]

    def find_module(self, name: ast.expr, scope: Scope) -> Scope | None:
        """Return the file that a name means: ``models`` after ``import models``."""
        whole = self.dotted(name, scope)
        return self._homes.find(whole, scope.module) if whole is not None else None

    def find_bound(self, node: ast.expr, scope: Scope) -> tuple[Scope, list[ast.expr]] | None:
        """Return where a variable of this file, or of another that it imports, is bound and to what."""
        found = scope.lookup(node.id) if isinstance(node, ast.Name) else None
        name = self.dotted(node, scope) if found is None else None
        if name is None:
            return found
        home = self._find_named(name, scope)
        return (home[0], home[0].bound[home[1]]) if home is not None and home[1] in home[0].bound else None

    def find_maker(self, node: ast.expr, scope: Scope) -> tuple[ast.Call, Scope] | None:
        """Return the only call that made what a variable, an attribute of ``self`` or a call is, and its scope."""
        home: Scope | None = scope
        values = [node]
        if isinstance(node, ast.Name):
            home, values = scope.lookup(node.id) or (None, [])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            home = scope.find_class()
            values = home.attributes.get(node.attr, []) if home is not None else []
        only = values[0] if len(values) == 1 else None
        return (only, home) if isinstance(only, ast.Call) and home is not None else None

    def find_made(self, node: ast.expr, scope: Scope) -> Scope | None:
        """Return the class of an object, where it can be of one only and that stands in one of the files."""
        return self.objects.find_made(node, scope)

    def find_related(self, module: Scope) -> frozenset[Scope]:
        """Return a module with those that import it or that it imports, directly or not."""
        if not self._related:
            for each in self.modules:
                self._related[each] = {each}
            for each in self.modules:
                for other in self.imported(each):
                    if self._related[other] is not self._related[each]:
                        self._related[each] |= self._related[other]
                        for member in self._related[other]:
                            self._related[member] = self._related[each]
        return frozenset(self._related[module])

    def imported(self, module: Scope) -> frozenset[Scope]:
        """Return the modules among the files that a module imports, anywhere in it."""
        if module not in self._imported:
            self._imported[module] = frozenset(self._find_imported(module)) - {module}
        return self._imported[module]

    def _find_imported(self, module: Scope) -> Iterator[Scope]:
        for scope in module.walk():
            for name in scope.imports.values():
                for each in (name, name.rpartition(".")[0]):
                    home = self._homes.find(each, module) if each.strip(".") else None
                    if home is not None:
                        yield home

    @cached_property
    def all_imported(self) -> frozenset[Scope]:
        """The modules among the files that another of them imports."""
        return frozenset(found for each in self.modules for found in self.imported(each))

    def was_read(self, name: str, scope: Scope) -> bool:
        """Whether a module of this name, or the one in which something of this name stands, is read and parsed."""
        for each in (name, name.rpartition(".")[0]):
            home = self._homes.find(each, scope.module) if each.strip(".") else None
            if home is not None:
                return (
                    not home.script.unrelated and home.script.problem is None
                )  # a file that is about something else is not parsed
        return False


def name_calls(scope: Scope, files: Files) -> Iterator[tuple[ast.Call, str]]:
    """Return the calls that stand in a scope itself with their dotted names, in order of the lines."""
    return iter(files.name_calls(scope))


def _find_none(_: Scope) -> set[str]:
    """Stand in for what knows collectives, where only names are asked for."""
    return set()
