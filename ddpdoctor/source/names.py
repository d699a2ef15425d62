"""What names mean: imports, functions, classes and what variables are bound to, in the files that are read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ddpdoctor.evidence.sources import SourcePlace
from ddpdoctor.source.budget import spend
from ddpdoctor.source.imported import name_modules
from ddpdoctor.source.nodes import children
from ddpdoctor.source.reading import Script

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
UNKNOWN = ast.Constant(value=...)
"""What a variable is bound to where its value is no expression of the file, such as the target of a loop."""


@dataclass(eq=False, slots=True)
class Scope:
    """A module, class or function, and what is bound in it."""

    script: Script
    node: ast.Module | ast.ClassDef | FunctionNode
    outer: Scope | None
    name: str | None
    bound: dict[str, list[ast.expr]] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    functions: dict[str, Scope] = field(default_factory=dict)
    classes: dict[str, Scope] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    loops: set[str] = field(default_factory=set)
    """Targets of loops."""
    attributes: dict[str, list[ast.expr]] = field(default_factory=dict)
    """Of a class: what its methods assign to attributes of ``self``."""
    reduced: set[str] = field(default_factory=set)
    """Names that a collective has made equal on all ranks."""
    spawned: bool = False
    """Whether ``mp.spawn`` calls it, with the rank as first argument."""
    calls: tuple[ast.Call, ...] | None = None
    """Those that stand in the scope itself; kept by ``walking.find_calls``."""

    @property
    def module(self) -> Scope:
        """The module in which it stands."""
        *_, module = self.outwards()
        return module

    def place(self, node: ast.AST) -> SourcePlace:
        """Return where a node of this scope stands."""
        return self.script.place(node, self.name)

    def walk(self) -> Iterator[Scope]:
        """Yield this scope and those inside of it."""
        yield self
        for inner in (*self.functions.values(), *self.classes.values()):
            yield from inner.walk()

    def outwards(self) -> Iterator[Scope]:
        """Yield this scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def visible(self) -> Iterator[Scope]:
        """Yield the scopes whose names are known here: a class shows its own to nothing inside of it."""
        for scope in self.outwards():
            if scope is self or not isinstance(scope.node, ast.ClassDef):
                yield scope

    def find_class(self) -> Scope | None:
        """Return the class around, if there is one."""
        return next((scope for scope in self.outwards() if isinstance(scope.node, ast.ClassDef)), None)

    def lookup(self, name: str) -> tuple[Scope, list[ast.expr]] | None:
        """Return where a variable is bound and to what; None where nobody binds it."""
        return next(((scope, scope.bound[name]) for scope in self.visible() if name in scope.bound), None)


class Files:
    """All scripts that are read together."""

    def __init__(self, scripts: Iterable[Script]) -> None:
        self.modules: list[Scope] = []
        for script in scripts:
            if script.tree is not None:
                self.modules.append(_build(script, script.tree, None, None))
        self._related: dict[Scope, set[Scope]] = {}
        self._by_name: dict[str, Scope | None] = {}
        for module in self.modules:
            for key in name_modules(module.script.name):
                self._by_name[key] = None if key in self._by_name else module  # two of one name: neither

    def dotted(self, node: ast.expr, scope: Scope) -> str | None:
        """Return ``torch.distributed.barrier`` for what a file calls ``dist.barrier``; None for other expressions."""
        spend()
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        name = node.id
        for each in scope.outwards():
            if name in each.imports:
                name = each.imports[name]
                break
            if name in each.bound and not isinstance(each.node, (ast.Module, ast.ClassDef)):
                break  # a variable of the function hides it
        return ".".join([name, *reversed(parts)])

    def function(self, call: ast.expr, scope: Scope) -> Scope | None:
        """Return the function that is called, where it stands in one of the files."""
        if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name):
            if call.value.id in ("self", "cls"):
                owner = scope.find_class()
                return owner.functions.get(call.attr) if owner is not None else None
            made = self.find_made(call.value, scope)
            if made is not None:
                return made.functions.get(call.attr)
        name = self.dotted(call, scope)
        if name is None:
            return None
        for each in scope.visible():
            if name in each.functions:
                return each.functions[name]
        home, last = self._module_of(name)
        return home.functions.get(last) if home is not None else None

    def find_class(self, name: ast.expr, scope: Scope) -> Scope | None:
        """Return the class that an expression names, where it stands in one of the files."""
        called = self.dotted(name, scope)
        if called is None:
            return None
        for each in scope.visible():
            if called in each.classes:
                return each.classes[called]
        home, last = self._module_of(called)
        return home.classes.get(last) if home is not None else None

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
        """Return the class of an object, where it is made in one place and the class stands in one of the files."""
        maker = self.find_maker(node, scope)
        return self.find_class(maker[0].func, maker[1]) if maker is not None else None

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

    def imported(self, module: Scope) -> set[Scope]:
        """Return the modules among the files that a module imports, anywhere in it."""
        found = set()
        for scope in module.walk():
            for name in scope.imports.values():
                for each in (name, name.rpartition(".")[0]):
                    home = self._by_name.get(each.lstrip(".")) if each else None
                    if home is not None:
                        found.add(home)
        return found - {module}

    def was_read(self, name: str) -> bool:
        """Whether a module of this name, or the one in which something of this name stands, is read and parsed."""
        for each in (name, name.rpartition(".")[0]):
            home = self._by_name.get(each.lstrip(".")) if each else None
            if home is not None:
                return bool(home.node.body)  # a file that is about something else is not parsed
        return False

    def _module_of(self, name: str) -> tuple[Scope | None, str]:
        """Return the file in which a dotted name lies, where it is one of those that are read, and its last part."""
        module, _, last = name.rpartition(".")
        return (self._by_name.get(module.lstrip(".")) if module else None), last


def _build(
    script: Script, node: ast.Module | ast.ClassDef | FunctionNode, outer: Scope | None, name: str | None
) -> Scope:
    scope = Scope(script, node, outer, name)
    if not isinstance(node, (ast.Module, ast.ClassDef)):
        every = [*node.args.posonlyargs, *node.args.args]
        scope.parameters = tuple(each.arg for each in every)
        extra = [*node.args.kwonlyargs, *(each for each in (node.args.vararg, node.args.kwarg) if each)]
        for each in [*every, *extra]:
            scope.bound[each.arg] = [UNKNOWN]
    for statement in node.body:
        _bind(statement, scope)
    return scope


def _bind(node: ast.AST, scope: Scope) -> None:
    """Note what a statement binds; functions and classes are scopes of their own."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        name = f"{scope.name}.{node.name}" if scope.name else node.name
        inner = _build(scope.script, node, scope, name)
        (scope.classes if isinstance(node, ast.ClassDef) else scope.functions)[node.name] = inner
        return
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        _import(node, scope)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            _assign(target, node.value, scope)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        if node.value is not None:
            _assign(node.target, node.value, scope)
    elif isinstance(node, ast.AugAssign):
        _assign(node.target, UNKNOWN, scope)
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        _assign(node.target, UNKNOWN, scope)
        scope.loops.update(each.id for each in ast.walk(node.target) if isinstance(each, ast.Name))
    elif isinstance(node, ast.Global):
        for name in node.names:
            scope.module.bound.setdefault(name, []).append(UNKNOWN)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        _assign(node.optional_vars, UNKNOWN, scope)
    for child in children(node):
        _bind(child, scope)


def _import(node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    for alias in node.names:
        if isinstance(node, ast.Import):
            whole = alias.name if alias.asname else alias.name.split(".")[0]
            scope.imports[alias.asname or whole] = whole
        else:
            module = "." * node.level + (node.module or "")
            joined = f"{module}{'' if module.endswith('.') or not module else '.'}{alias.name}"
            scope.imports[alias.asname or alias.name] = joined


def _assign(target: ast.expr, value: ast.expr, scope: Scope) -> None:
    if isinstance(target, ast.Name):
        scope.bound.setdefault(target.id, []).append(value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        values: list[ast.expr] = [UNKNOWN] * len(target.elts)
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            values = value.elts
        for each, own in zip(target.elts, values, strict=True):
            _assign(each, own, scope)
    elif (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    ):
        owner = scope.find_class()
        if owner is not None:
            owner.attributes.setdefault(target.attr, []).append(value)
