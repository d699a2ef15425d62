"""Values that are texts and numbers, where the source itself says what they are."""

from __future__ import annotations

import ast

from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope

DEEPEST = 8
KEPT = frozenset({"str", "int", "os.path.abspath", "os.path.realpath", "os.path.expanduser", "pathlib.Path"})
"""Functions that leave a text as it is, as far as its being fixed goes."""


def read_number(node: ast.expr) -> int | None:
    """Return the whole number that is spelled out, or the text of digits alone; None for others."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = read_number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isdigit():
        return int(node.value[:9])
    return None


def read_text(node: ast.expr) -> str | None:
    """Return the text that is spelled out; None for others."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def fold(node: ast.expr | None, scope: Scope, files: Files, depth: int = 0) -> str | None:
    """Return the text (or number, as text) that an expression always is; None where it is not fixed."""
    if node is None or depth > DEEPEST or node is UNKNOWN:
        return None
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, (str, int)) else None
    if isinstance(node, ast.JoinedStr):
        return _join(list(node.values), "", scope, files, depth)
    if isinstance(node, ast.FormattedValue):
        return fold(node.value, scope, files, depth + 1)
    number = _fold_number(node, scope, files, depth)
    if number is not None:
        return str(number)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        if any(_fold_number(each, scope, files, depth) is not None for each in (node.left, node.right)):
            return None  # a number is added to what is not known
        return _join(
            [node.left, node.right], "/" if isinstance(node.op, ast.Div) else "", scope, files, depth
        )
    if isinstance(node, ast.Call):
        name = files.dotted(node.func, scope)
        if name == "os.path.join":
            return _join(node.args, "/", scope, files, depth)
        if name == "os.getcwd" and not node.args:
            return "."
        return fold(node.args[0], scope, files, depth + 1) if name in KEPT and len(node.args) == 1 else None
    if isinstance(node, ast.Name):
        found = scope.lookup(node.id)
        return fold(found[1][0], found[0], files, depth + 1) if found and len(found[1]) == 1 else None
    return None


def _fold_number(node: ast.expr, scope: Scope, files: Files, depth: int) -> int | None:
    """Return the whole number that an expression always is; None for texts, and for what is not fixed."""
    if depth > DEEPEST or node is UNKNOWN:
        return None
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        found = scope.lookup(node.id)
        return _fold_number(found[1][0], found[0], files, depth + 1) if found and len(found[1]) == 1 else None
    if isinstance(node, ast.Call) and len(node.args) == 1 and files.dotted(node.func, scope) == "int":
        text = fold(node.args[0], scope, files, depth + 1)
        return int(text) if text is not None and text.isdecimal() else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        left, right = (_fold_number(each, scope, files, depth + 1) for each in (node.left, node.right))
        if left is None or right is None:
            return None
        return (
            left + right
            if isinstance(node.op, ast.Add)
            else left - right
            if isinstance(node.op, ast.Sub)
            else left * right
        )
    return None


def _join(nodes: list[ast.expr], middle: str, scope: Scope, files: Files, depth: int) -> str | None:
    parts = [fold(each, scope, files, depth + 1) for each in nodes]
    return None if None in parts else middle.join(each or "" for each in parts)


def find_settings(node: ast.AST, scope: Scope, files: Files) -> list[tuple[str, ast.expr]]:
    """Return the environment variables that a call or an assignment sets, with the expressions of their values."""
    if isinstance(node, ast.Assign):
        return [
            (name, node.value)
            for target in node.targets
            if isinstance(target, ast.Subscript) and files.dotted(target.value, scope) == "os.environ"
            for name in [fold(target.slice, scope, files)]
            if name is not None
        ]
    if not isinstance(node, ast.Call):
        return []
    called = files.dotted(node.func, scope)
    if called in ("os.environ.setdefault", "os.putenv") and len(node.args) == 2:
        name = fold(node.args[0], scope, files)
        return [(name, node.args[1])] if name is not None else []
    if called == "os.environ.update":
        found = [(each.arg, each.value) for each in node.keywords if each.arg is not None]
        for given in node.args[:1]:
            if isinstance(given, ast.Dict):
                names = [fold(key, scope, files) for key in given.keys]
                found += [(n, v) for n, v in zip(names, given.values, strict=True) if n is not None]
        return found
    return []
