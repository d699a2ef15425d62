"""Walking over syntax trees: what stands in a scope itself, without the functions and classes in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.source.names import Scope
from ddpdoctor.source.nodes import children


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is inside of a node, without what is inside of functions and classes in it."""
    waiting = list(children(node))
    while waiting:
        each = waiting.pop()
        yield each
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += children(each)


def find_calls(scope: Scope) -> Iterator[ast.Call]:
    """Yield the calls that stand in a scope itself, in no order."""
    if scope.calls is None:
        scope.calls = tuple(node for node in own_nodes(scope.node) if isinstance(node, ast.Call))
    yield from scope.calls
