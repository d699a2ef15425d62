"""Objects in lists: the methods that ``for hook in self.hooks: hook.after_step()`` runs, one after the other."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.walking import find_argument, own_nodes

DEEPEST = 6
"""Variables and parameters over which a list is followed."""
MOST = 16
"""Objects of one list."""

KEEP = frozenset({"list", "tuple", "enumerate", "reversed", "sorted"})
"""Functions whose result has the elements of what they are given."""
_CHANGES = r"\s{0,40}\)?\s{0,40}(?:\.\s{0,40}(?:append|insert|extend)\b|[-+*/%&|^@<>]{0,2}=)"
"""What follows the name of a list where that is changed, or set anew."""
Given = Sequence[tuple[ast.Call, Scope, Scope]]
"""Calls of functions, the outermost first: the call, where it stands, and the function that it runs."""
Place = tuple[ast.expr, Scope]
"""An expression, and where it stands."""


class ListReader:
    """Follows lists to the objects that they hold.

    Args:
        files: all that are read together.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: dict[tuple[ast.expr, Scope], tuple[Place, ...]] = {}

    def methods(self, call: ast.Call, scope: Scope, given: Given) -> list[Scope]:
        """Return the methods of the files that a call of a loop's variable runs, in the order of the objects.

        Of objects whose class is not known, or has no such method, nothing; ``getattr(hook, name)()`` is followed where
        the name is spelled out, or the calls give it.

        Args:
            call: any call.
            scope: where it stands.
            given: the calls through which a run comes there.
        """
        owner, name = self._take_apart(call.func, scope, given)
        if owner is None or name is None or owner.id not in scope.loops:
            return []
        found = []
        for node in own_nodes(scope.node):
            if isinstance(node, (ast.For, ast.AsyncFor)) and _binds(node.target, owner.id):
                for element, home in self._list_elements(node.iter, scope):
                    made = self._files.find_made(element, home)
                    method = self._files.objects.method(made, name) if made is not None else None
                    if method is not None:
                        found.append(method)
        return list(dict.fromkeys(found))[:MOST]

    def _take_apart(self, func: ast.expr, scope: Scope, given: Given) -> tuple[ast.Name | None, str | None]:
        """Return the variable and the name of the method of ``hook.step`` or ``getattr(hook, "step")``."""
        owner: ast.expr | None = None
        name: str | None = None
        if isinstance(func, ast.Attribute):
            owner, name = func.value, func.attr
        elif isinstance(func, ast.Call) and getattr(func.func, "id", "") == "getattr" and len(func.args) > 1:
            owner, name = func.args[0], _read_text(func.args[1], scope, given)
        return (owner, name) if isinstance(owner, ast.Name) else (None, None)

    def _list_elements(self, node: ast.expr, scope: Scope) -> tuple[Place, ...]:
        key = node, scope
        if key not in self._held:
            self._held[key] = ()
            while isinstance(node, ast.Call) and getattr(node.func, "id", "") in KEEP and node.args:
                node = node.args[0]
            self._held[key] = tuple({id(each[0]): each for each in self._find(node, scope, 0)}.values())
        return self._held[key]

    def _find(self, node: ast.expr | None, scope: Scope, depth: int) -> Iterator[Place]:
        """Yield the elements that a list is made of, or that are added to it, as far as they are known."""
        if node is None or node is UNKNOWN or depth > DEEPEST:
            return
        if isinstance(node, (ast.List, ast.Tuple)):
            for each in node.elts:
                if isinstance(each, ast.Starred):
                    yield from self._find(each.value, scope, depth + 1)
                else:
                    yield from self._expand(each, scope, depth)
        elif isinstance(node, (ast.BinOp, ast.BoolOp)):
            for each in (node.left, node.right) if isinstance(node, ast.BinOp) else node.values:
                yield from self._find(each, scope, depth + 1)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in KEEP and node.args:
            yield from self._find(node.args[0], scope, depth + 1)
        elif isinstance(node, ast.Name):
            yield from self._of_name(node.id, scope, depth)
        elif isinstance(node, ast.Attribute):
            owner = self._files.find_made(node.value, scope)
            if owner is not None:
                yield from self._of_attribute(node.attr, owner, depth)

    def _expand(self, element: ast.expr, scope: Scope, depth: int) -> Iterator[Place]:
        """Yield an element; of a parameter what callers give."""
        given = self._list_given(element.id, scope) if isinstance(element, ast.Name) else []
        for each, home in given if depth <= DEEPEST else ():
            yield from self._expand(each, home, depth + 1)
        if not given:
            yield element, scope

    def _list_given(self, name: str, scope: Scope) -> list[Place]:
        home, _ = scope.lookup(name) or (scope, [])
        if name not in home.parameters:
            return []
        calls = self._files.objects.callers(home)[:MOST]
        given = [(find_argument(call, home, name), where) for call, where in calls]
        return [(each, where) for each, where in given if each is not None]

    def _of_name(self, name: str, scope: Scope, depth: int) -> Iterator[Place]:
        home, values = scope.lookup(name) or (scope, [])
        for value, where in (*self._list_given(name, scope), *((each, home) for each in values)):
            yield from self._find(value, where, depth + 1)
        yield from self._list_added(home, lambda each: isinstance(each, ast.Name) and each.id == name, depth)

    def _of_attribute(self, name: str, owner: Scope, depth: int) -> Iterator[Place]:
        for each in self._files.objects.bases(owner):
            for value in each.attributes.get(name, ()):
                yield from self._find(value, each.makers.get(value, each), depth + 1)
        changes = re.compile(rf"\.{re.escape(name)}\b{_CHANGES}")
        for module in self._files.modules:
            for scope in module.walk() if changes.search(module.script.text) else ():
                yield from self._list_added(scope, partial(self._is_attribute, name, owner, scope), depth)

    def _is_attribute(self, name: str, owner: Scope, scope: Scope, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and node.attr == name
            and self._files.find_made(node.value, scope) is owner
        )

    def _list_added(self, scope: Scope, is_it: Callable[[ast.expr], bool], depth: int) -> Iterator[Place]:
        """Yield what a function puts into a list, by its methods or by ``+=``, or sets an object's list to."""
        for node in own_nodes(scope.node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                if node.func.attr in ("append", "insert") and is_it(node.func.value):
                    yield from self._expand(node.args[-1], scope, depth)
                elif node.func.attr == "extend" and is_it(node.func.value):
                    yield from self._find(node.args[0], scope, depth + 1)
            elif (isinstance(node, ast.AugAssign) and is_it(node.target)) or (
                isinstance(node, ast.Assign)
                and any(isinstance(each, ast.Attribute) and is_it(each) for each in node.targets)
            ):
                yield from self._find(node.value, scope, depth + 1)


def _read_text(node: ast.expr | None, scope: Scope, given: Given) -> str | None:
    """Return a text that is spelled out, or that the calls through which a run comes there give."""
    for call, home, callee in reversed(given):
        if not isinstance(node, ast.Name) or callee is not scope or node.id not in scope.parameters:
            break
        node, scope = find_argument(call, callee, node.id), home
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _binds(target: ast.expr, name: str) -> bool:
    """Whether a loop binds its elements to a variable; of ``enumerate`` the second one."""
    last = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
    return isinstance(last, ast.Name) and last.id == name
