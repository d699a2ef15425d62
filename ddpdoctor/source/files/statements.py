"""The statements of a syntax tree, which are a small part of its nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields that hold statements, in the order of the lines."""


def walk_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all statements, handlers and cases below it, in the order of ``ast.walk``.

    Args:
        node: a module, a class, a function that is no lambda, or a statement.
    """
    waiting = [node]
    for each in waiting:  # the list grows
        yield each
        for name in BLOCKS:
            waiting += getattr(each, name, ())
