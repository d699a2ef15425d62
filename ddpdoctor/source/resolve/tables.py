"""Arguments that a call takes out of tables: ``DataLoader(dataset, **kwargs)``."""

from __future__ import annotations

import ast

from ddpdoctor.source.resolve.scopes import Scope
from ddpdoctor.source.resolve.walking import own_nodes


def may_give(call: ast.Call, scope: Scope, word: str) -> bool:
    """Whether ``*args`` or ``**kwargs`` of a call may give an argument whose name has a word in it.

    They do not where the tables are made in the same function, with keys that are spelled out, and changed only by
    keys that are.

    Args:
        call: of a function that is not followed.
        scope: where it stands.
        word: a part of the names of arguments.
    """
    if any(isinstance(each, ast.Starred) for each in call.args):
        return True
    return any(each.arg is None and _may_have(each.value, scope, word, 0) for each in call.keywords)


def _may_have(table: ast.expr, scope: Scope, word: str, depth: int) -> bool:
    """Whether a table may have a key with a word in it."""
    if isinstance(table, ast.Name) and depth < 4:
        values = scope.bound.get(table.id)
        if not values or table.id in scope.parameters:
            return True
        if any(_may_have(each, scope, word, depth + 1) for each in values):
            return True
        return any(_may_add(each, table.id, scope, word, depth) for each in own_nodes(scope.node))
    if isinstance(table, ast.IfExp):
        return any(_may_have(each, scope, word, depth) for each in (table.body, table.orelse))
    if isinstance(table, ast.Call) and isinstance(table.func, ast.Name) and table.func.id == "dict":
        names = [each.arg for each in table.keywords]
        return bool(table.args) or any(each is None or word in each for each in names)
    return not isinstance(table, ast.Dict) or any(_is_about(each, word) for each in table.keys)


def _may_add(node: ast.AST, name: str, scope: Scope, word: str, depth: int) -> bool:
    """Whether a node may put a key with a word in it into the table of a name."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name:
        return isinstance(node.ctx, ast.Store) and _is_about(node.slice, word)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    if not isinstance(owner, ast.Name) or owner.id != name or node.func.attr in ("get", "pop", "items"):
        return False
    if node.func.attr == "update" and len(node.args) <= 1:
        named = any(each.arg is None or word in each.arg for each in node.keywords)
        return named or any(_may_have(each, scope, word, depth + 1) for each in node.args)
    return True


def _is_about(key: ast.expr | None, word: str) -> bool:
    return not isinstance(key, ast.Constant) or word in str(key.value)
