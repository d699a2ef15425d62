"""Scopes of a file: modules, classes and functions, and what is bound in each."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence.sources import SourcePlace
from ddpdoctor.source.files.reading import Script
from ddpdoctor.source.resolve.tree_nodes import OWN, walk_own

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
    """Attribute of ``self`` -> what the methods of a class assign to it."""
    makers: dict[ast.expr, Scope] = field(default_factory=dict)
    """Value assigned to an attribute of ``self``, or to a ``global`` of the module -> the function in which it
    stands."""
    shared: set[str] = field(default_factory=set)
    """Names that a function declares ``global``."""
    spawned: bool = False
    """Whether ``mp.spawn`` calls it, with the rank as first argument."""
    calls: tuple[ast.Call, ...] | None = None
    """Those that stand in the scope itself; kept by ``walking.find_calls``."""
    places: dict[str, int] | None = None
    """The place of each parameter among the arguments of a call; kept by ``walking.find_argument``."""
    _walked: tuple[Scope, ...] = ()
    _visible: tuple[Scope, ...] = ()

    @property
    def module(self) -> Scope:
        """The module in which it stands."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope

    def place(self, node: ast.AST) -> SourcePlace:
        """Return where a node of this scope stands."""
        return self.script.place(node, self.name)

    def walk(self) -> tuple[Scope, ...]:
        """Return this scope and those inside of it, once its file is read to its end."""
        if not self._walked:
            inner = (*self.functions.values(), *self.classes.values())
            self._walked = (self, *(scope for each in inner for scope in each.walk()))
        return self._walked

    def outwards(self) -> Iterator[Scope]:
        """Yield this scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def visible(self) -> tuple[Scope, ...]:
        """Return the scopes whose names are known here: a class shows its own to nothing inside of it."""
        if not self._visible:
            outer = (each for each in self.outwards() if not isinstance(each.node, ast.ClassDef))
            self._visible = (self, *(each for each in outer if each is not self))
        return self._visible

    def find_class(self) -> Scope | None:
        """Return the class around, if there is one."""
        return next((scope for scope in self.outwards() if isinstance(scope.node, ast.ClassDef)), None)

    def lookup(self, name: str) -> tuple[Scope, list[ast.expr]] | None:
        """Return where a variable is bound and to what; None where nobody binds it."""
        for scope in self.visible():
            if name in scope.bound:
                return scope, scope.bound[name]
        return None


def build_scope(
    script: Script, node: ast.Module | ast.ClassDef | FunctionNode, outer: Scope | None, name: str | None
) -> Scope:
    """Return a module, class or function with all that is bound in it, and the scopes inside of it.

    Args:
        script: the file.
        node: of its syntax tree.
        outer: the scope around; None of a module.
        name: under which it is told; None of a module.
    """
    scope = Scope(script, node, outer, name)
    if not isinstance(node, (ast.Module, ast.ClassDef)):
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        scope.parameters = tuple(each.arg for each in every)
        extra = [each for each in (node.args.vararg, node.args.kwarg) if each]
        for each in [*every, *extra]:
            scope.bound[each.arg] = [UNKNOWN]
    own = tuple(walk_own(node))
    setattr(node, OWN, own)
    start = _find_start(node.body[0]) if node.body else (0, 0)
    binding = [(_find_start(each), -place) for place, each in enumerate(own) if each.__class__ in _NOTES]
    for at, place in sorted(binding):
        if at >= start:  # what stands in decorators, defaults and annotations is of the scope around
            _NOTES[own[-place].__class__](own[-place], scope)
    return scope


def _find_start(given: ast.AST) -> tuple[int, int]:
    """Return the line and column at which a node begins, or what it binds where it has none itself."""
    node: Any = given
    if node.__class__ is ast.comprehension:
        node = node.target
    elif node.__class__ is ast.withitem:
        node = node.optional_vars or node.context_expr
    return node.lineno, node.col_offset


def _note_inner(node: FunctionNode | ast.ClassDef, scope: Scope) -> None:
    name = f"{scope.name}.{node.name}" if scope.name else node.name
    inner = build_scope(scope.script, node, scope, name)
    (scope.classes if isinstance(node, ast.ClassDef) else scope.functions)[node.name] = inner


def _note_assignment(node: ast.Assign, scope: Scope) -> None:
    for target in node.targets:
        _assign(target, node.value, scope)


def _note_value(node: ast.AnnAssign | ast.NamedExpr, scope: Scope) -> None:
    if node.value is not None:
        _assign(node.target, node.value, scope)


def _note_change(node: ast.AugAssign, scope: Scope) -> None:
    _assign(node.target, UNKNOWN, scope)


def _note_loop(node: ast.For | ast.AsyncFor | ast.comprehension, scope: Scope) -> None:
    _assign(node.target, UNKNOWN, scope)
    scope.loops.update(each.id for each in ast.walk(node.target) if isinstance(each, ast.Name))


def _note_global(node: ast.Global, scope: Scope) -> None:
    scope.shared.update(node.names)
    for name in node.names:
        scope.module.bound.setdefault(name, []).append(UNKNOWN)


def _note_manager(node: ast.withitem, scope: Scope) -> None:
    if node.optional_vars is not None:
        _assign(node.optional_vars, UNKNOWN, scope)


def _import(node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    for alias in node.names:
        if isinstance(node, ast.Import):
            whole = alias.name if alias.asname else alias.name.split(".")[0]
            scope.imports[alias.asname or whole] = whole
        else:
            module = "." * node.level + (node.module or "")
            joined = f"{module}{'' if module.endswith('.') or not module else '.'}{alias.name}"
            scope.imports[alias.asname or (joined if alias.name == "*" else alias.name)] = joined


def _assign(target: ast.expr, value: ast.expr, scope: Scope) -> None:
    if isinstance(target, ast.Name):
        scope.bound.setdefault(target.id, []).append(value)
        if target.id in scope.shared and value is not UNKNOWN:
            module = scope.module
            module.bound[target.id].append(value)
            module.makers[value] = scope
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
            owner.makers[value] = scope


_NOTES: dict[type[ast.AST], Callable[[Any, Scope], None]] = {
    ast.FunctionDef: _note_inner,
    ast.AsyncFunctionDef: _note_inner,
    ast.ClassDef: _note_inner,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Assign: _note_assignment,
    ast.AnnAssign: _note_value,
    ast.NamedExpr: _note_value,
    ast.AugAssign: _note_change,
    ast.For: _note_loop,
    ast.AsyncFor: _note_loop,
    ast.comprehension: _note_loop,
    ast.Global: _note_global,
    ast.withitem: _note_manager,
}
"""What is noted of nodes that bind names: most nodes bind none."""
