"""Nodes of syntax trees, walked at the speed that millions of them need."""

from __future__ import annotations

import ast

from ddpdoctor.source.files.budget import spend


def children(node: ast.AST) -> list[ast.AST]:
    """Return what ``ast.iter_child_nodes`` yields, without marks such as Load and Add: a third of all nodes."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [
                each for each in value if isinstance(each, ast.AST) and (each._fields or each._attributes)
            ]
        elif isinstance(value, ast.AST) and (value._fields or value._attributes):
            found.append(value)
    spend(1 + len(found))
    return found
