"""What statements bind a variable to, and under which tests, and what they add to attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.source.resolve.scopes import Scope
from ddpdoctor.source.resolve.walking import keep, own_nodes


def list_given(
    body: Iterable[ast.stmt], name: str, tests: tuple[tuple[ast.expr, bool], ...]
) -> Iterator[tuple[ast.expr, tuple[tuple[ast.expr, bool], ...]]]:
    """Yield what plain assignments of a block bind a variable to, each with the tests around it and their sides."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            if any(isinstance(each, ast.Name) and each.id == name for each in statement.targets):
                yield statement.value, tests
        elif isinstance(statement, ast.If):
            yield from list_given(statement.body, name, (*tests, (statement.test, True)))
            yield from list_given(statement.orelse, name, (*tests, (statement.test, False)))
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from list_given(getattr(statement, field, ()), name, tests)
            for handler in getattr(statement, "handlers", ()):
                yield from list_given(handler.body, name, tests)


def list_added(owner: Scope) -> tuple[tuple[str, ast.AugAssign, Scope], ...]:
    """Return what the methods of a class add to attributes of ``self``, each with the method in which it stands."""
    return keep(
        owner.node,
        "_added",
        lambda _: (
            (node.target.attr, node, method)
            for method in owner.functions.values()
            for node in own_nodes(method.node)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute)
            if isinstance(node.target.value, ast.Name) and node.target.value.id == "self"
        ),
    )
