"""What a loss hangs on: the calls behind a value, followed backwards through variables and functions."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field

from ddpdoctor.source.resolve.flow import Binding, name_of
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.walking import find_argument, names_in, own_nodes

CUT = frozenset({"detach", "detach_", "item", "tolist", "numpy", "size", "argmax", "shape", "dim", "numel"})
"""Methods behind which no gradient comes back."""
DEEPEST = 24


@dataclass(slots=True)
class Slice:
    """The calls on which a value hangs, as far as gradients go."""

    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    names: set[tuple[str, Scope]] = field(default_factory=set)
    """Variables on the way."""
    words: set[str] = field(default_factory=set)
    """Names of variables, attributes and methods on the way, also of what is cut off."""
    complete: bool = True
    """Whether all was followed; a list that is filled elsewhere, for one, is not."""
    unbound: set[str] = field(default_factory=set)
    """Variables and attributes on the way that nothing is seen to bind."""


def loss_of(backward: ast.Call) -> ast.expr | None:
    """Return what ``backward`` is called of, or is given."""
    if not isinstance(backward.func, ast.Attribute):
        return None
    owner = backward.func.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    managed = backward.func.attr == "manual_backward" or name in (
        "accelerator",
        "fabric",
        "engine",
        "autograd",
    )
    return backward.args[0] if managed and backward.args else owner


def slice_of(node: ast.expr, scope: Scope, kinds: Kinds) -> Slice:
    """Return what an expression hangs on."""
    found = Slice()
    _Follower(kinds, found).visit(node, scope, 0)
    return found


class _Follower:
    def __init__(self, kinds: Kinds, found: Slice) -> None:
        self._kinds = kinds
        self._found = found
        self._seen: set[int] = set()
        self._entered: set[Scope] = set()
        """Functions that were come to from a call: what that call gives them is followed there."""

    def visit(self, node: ast.AST, scope: Scope, depth: int) -> None:
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        if isinstance(node, (ast.Name, ast.Attribute)):
            self._found.words.update(names_in(node))
        if depth > DEEPEST:
            self._found.complete = False
        elif isinstance(node, ast.Call):
            self._call(node, scope, depth)
        elif isinstance(node, (ast.Name, ast.Attribute)) and name_of(node) is not None:
            self._name(node, scope, depth)
        elif isinstance(node, (ast.List, ast.Dict)) and not list(ast.iter_child_nodes(node))[:-1]:
            self._found.complete = False  # an empty one: it is filled by calls of its methods
        elif isinstance(node, ast.IfExp):
            self.visit(node.body, scope, depth)
            self.visit(node.orelse, scope, depth)
        elif isinstance(node, (ast.Lambda, ast.Yield, ast.YieldFrom)):
            self._found.complete = False
        elif not isinstance(node, (ast.Compare, ast.expr_context, ast.operator)):
            for child in ast.iter_child_nodes(node):
                self.visit(child, scope, depth)

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> None:
        self._found.words.update(names_in(node))
        if isinstance(node.func, ast.Attribute) and node.func.attr in CUT:
            return
        self._found.calls.append((node, scope))
        if isinstance(node.func, ast.Attribute):
            self.visit(node.func.value, scope, depth + 1)
        for each in (*node.args, *(k.value for k in node.keywords)):
            self.visit(each, scope, depth)
        called = self._kinds.files.function(node.func, scope)
        if called is not None:
            self._entered.add(called)
        for inner in own_nodes(called.node) if called is not None else ():
            if isinstance(inner, (ast.Return, ast.Yield)) and inner.value is not None and called is not None:
                self.visit(inner.value, called, depth + 1)

    def _name(self, node: ast.expr, scope: Scope, depth: int) -> None:
        name = name_of(node) or ""
        for each in scope.visible():
            flow = self._kinds.flow(each)
            spot = flow.spot(node) if each is scope else None
            bindings = flow.holding(name, spot) if spot is not None else flow.all_of(name)
            if bindings:
                self._found.names.add((name, each))
                for binding in bindings:
                    self._binding(name, binding, each, depth)
                return
        owner = scope.find_class() if name.startswith("self.") else None
        every = self._kinds.files.objects.bases(owner) if owner is not None else ()
        bound = False
        for method in [each for one in every for each in one.functions.values()]:
            for binding in self._kinds.flow(method).all_of(name) or ():
                self._binding(name, binding, method, depth)
                bound = True
        if (
            not bound
            and not any(name in each.imports for each in scope.outwards())
            and not hasattr(builtins, name)
        ):
            self._found.unbound.add(name)

    def _binding(self, name: str, binding: Binding, scope: Scope, depth: int) -> None:
        if binding.kind == "loop" and binding.value is not None and self._is_data(binding.value, scope):
            return
        if binding.value is not None:
            self.visit(binding.value, scope, depth + 1)
        elif binding.kind == "parameter" and scope not in self._entered:
            for call, home in self._kinds.callers(scope):
                given = find_argument(call, scope, name)
                starred = [each for each in call.args if isinstance(each, ast.Starred)]
                for each in [given] if given is not None else starred:
                    self.visit(each, home, depth + 1)

    def _is_data(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is a loader, from which no gradient comes."""
        return any(each.kind in ("loader", "prepared") for each in self._kinds.find(node, scope))
