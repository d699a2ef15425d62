"""Elements of lists and tuples: which one a subscript means, and whether they stay those that the list was made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.source.resolve.flow import name_of
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.walking import own_nodes

EACH = "*"
"""Stands for whichever element of a sequence."""
VALUES = "**"
"""Stands for whichever value of a dictionary."""
HOLD = frozenset({"list", "tuple", "reversed", "sorted", "torch.nn.ModuleList", "torch.nn.ModuleDict"})
"""What has the elements of what it is given."""
CHANGES = frozenset(
    {"append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort", "update", "setdefault"}
)
"""Methods of a list or a dictionary that change which elements it has."""


def read_key(node: ast.expr) -> int | str | None:
    """Return the place or the key that a subscript spells out; None for others."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = read_key(node.operand)
        return -inner if isinstance(inner, int) else None
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, str)) and value not in (EACH, VALUES) else None


def list_changed(scope: Scope) -> Iterator[str]:
    """Yield the names of what a function sets, adds or removes elements of."""
    for node in own_nodes(scope.node):
        holder: ast.expr | None = None
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            holder = node.value
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES
        ):
            holder = node.func.value
        name = name_of(holder) if holder is not None else None
        if name is not None:
            yield name
