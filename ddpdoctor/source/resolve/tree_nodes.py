"""Nodes of syntax trees, walked at the speed that millions of them need."""

from __future__ import annotations

import ast

from ddpdoctor.source.files.budget import spend

PLAIN = frozenset(
    {"arg", "attr", "ctx", "id", "kind", "level", "lineno", "module", "op", "ops", "type_comment"}
)
"""Fields that hold texts, numbers and marks such as Load and Add, which are a third of all nodes."""
MIXED = frozenset({"keys", "kw_defaults", "kwd_attrs", "names"})
"""Fields of lists that may hold ``None`` or texts between nodes."""
INNER = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda})
"""Nodes in which what stands is not of the scope around them."""
LEAVES = frozenset(
    {ast.Name, ast.Constant, ast.alias, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal}
)
"""Nodes in which there are no others, but for marks such as Load: more than half of all."""
CLOSED = LEAVES | INNER
"""Nodes below which a walk of a scope finds nothing more."""
OWN = "_own_nodes"
"""Attribute under which a scope's node keeps what `walk_own` gives."""
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = dict.fromkeys(LEAVES, ())


def children(node: ast.AST) -> list[ast.AST]:
    """Return what ``ast.iter_child_nodes`` yields, without marks such as Load and Add."""
    found = list_children(node)
    spend(1 + len(found))
    return found


def list_children(node: ast.AST) -> list[ast.AST]:
    """Return what `children` does, where no budget counts it."""
    kind = type(node)
    fields = _FIELDS.get(kind)
    if fields is None:
        fields = _FIELDS[kind] = tuple(name for name in node._fields if name not in PLAIN)
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += value if name not in MIXED else [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk_own(node: ast.AST) -> list[ast.AST]:
    """Return what is inside of a node, without what is inside of functions and classes in it; the last first."""
    found: list[ast.AST] = []
    waiting = list_children(node)
    while waiting:
        each = waiting.pop()
        found.append(each)
        if each.__class__ not in CLOSED:
            waiting += list_children(each)
    return found
