"""What a program takes out of a checkpoint that it loads, in the functions to which it is handed, and what it saves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.walking import find_argument, find_calls, own_nodes

DEEPEST = 3
"""Functions over which a checkpoint is followed."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A function that has a loaded checkpoint, or a part of one."""

    scope: Scope
    names: frozenset[str]
    """Its variables that are the checkpoint."""

    def read_keys(self, node: ast.AST) -> list[str]:
        """Return the keys under which something is taken out of the checkpoint in a node."""
        return [
            key
            for each in ast.walk(node)
            if (key := read_key(each)) is not None and _name_owner(each) in self.names
        ]


def find_holders(load: ast.Call, scope: Scope, kinds: Kinds) -> list[Holder]:
    """Return the functions that have what a call loads: its own, those that it is given to, those it is returned to.

    Args:
        load: the call.
        scope: where it stands.
        kinds: what knows callers.
    """
    found: dict[Scope, set[str]] = {}
    waiting: list[tuple[ast.expr | str, Scope, int]] = [(load, scope, 0)]
    for source, home, depth in waiting:
        names = {source} if isinstance(source, str) else _list_assigned(source, home)
        if names <= found.get(home, set()) and home in found:
            continue
        found.setdefault(home, set()).update(names)
        if depth >= DEEPEST:
            continue
        waiting += [(name, called, depth + 1) for name, called in _find_given(source, names, home, kinds)]
        if any(_is_it(each.value, source, names) for each in _returns(home)):
            waiting += [(call, caller, depth + 1) for call, caller in kinds.callers(home)]
    return [Holder(home, frozenset(names)) for home, names in found.items()]


def read_key(node: ast.AST) -> str | None:
    """Return ``epoch`` for ``checkpoint["epoch"]`` and ``checkpoint.get("epoch")``."""
    key: ast.AST | None = None
    if isinstance(node, ast.Subscript):
        key = node.slice
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("get", "pop")
    ):
        key = node.args[0] if node.args else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def find_entries(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield keys and values that a node puts into a table: a display, ``dict(key=value)`` or ``table["key"] = value``.

    A display with one key is none: it is no checkpoint with several states.
    """
    if isinstance(node, ast.Dict) and len(node.keys) > 1:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict" and len(node.keywords) > 1:
        yield from ((each.arg, each.value) for each in node.keywords if each.arg)
    elif isinstance(node, ast.Assign):
        yield from (
            (entry, node.value)
            for each in node.targets
            if isinstance(each, ast.Subscript) and (entry := read_key(each)) is not None
        )


def _list_assigned(load: ast.expr, scope: Scope) -> set[str]:
    """Return the variables to which what a call loads is assigned, or something made of it."""
    return {
        target.id
        for node in own_nodes(scope.node)
        if isinstance(node, ast.Assign) and any(each is load for each in ast.walk(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _find_given(
    source: ast.expr | str, names: set[str], scope: Scope, kinds: Kinds
) -> Iterator[tuple[str, Scope]]:
    """Yield the parameters of functions of the files that are given the whole checkpoint."""
    for call in find_calls(scope):
        given = [*call.args, *(each.value for each in call.keywords)]
        if not any(_is_it(each, source, names) for each in given):
            continue
        called = kinds.called(call, scope)
        if called is None:
            continue
        for name in called.parameters:
            argument = find_argument(call, called, name)
            if argument is not None and _is_it(argument, source, names):
                yield name, called


def _returns(scope: Scope) -> Iterator[ast.Return]:
    return (each for each in own_nodes(scope.node) if isinstance(each, ast.Return))


def _is_it(node: ast.expr | None, source: ast.expr | str, names: set[str]) -> bool:
    return node is source or (isinstance(node, ast.Name) and node.id in names)


def _name_owner(node: ast.AST) -> str:
    value = (
        node.value if isinstance(node, ast.Subscript) else getattr(getattr(node, "func", None), "value", None)
    )
    return value.id if isinstance(value, ast.Name) else ""
