"""Where a program replaces modules of a model that exists, or freezes parameters, read without running anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ddpdoctor.source.files.reading import Script

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FREEZES = re.compile(r"(?<!un)(freeze|frozen)|requires_grad", re.IGNORECASE)
_PUTS = frozenset({"setattr", "add_module", "register_module", "register_parameter"})
"""Functions that put what they are given under a name."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A statement that gives an attribute of an object another module, or freezes parameters."""

    file: str
    line: int
    text: str


def find_replacements(scripts: Iterable[Script], names: Collection[str]) -> list[Replacement]:
    """Return the statements that assign to attributes of some names, outside of the ``__init__`` of a class.

    Args:
        scripts: Of one program.
        names: Attributes: ``head`` for ``model.head = nn.Linear(8, 3)`` and ``setattr(model, "head", head)``.
    """
    found = []
    for script in scripts:
        for node in _list_statements(script.tree) if script.tree is not None else ():
            if _puts(node, names):
                found.append(Replacement(script.name, node.lineno, ast.unparse(node)))
    return list(dict.fromkeys(found))


def find_freezes(scripts: Iterable[Script]) -> list[Replacement]:
    """Return the statements that freeze parameters, or may, outside of the ``__init__`` of a class.

    Calls by such a name of what does not stand in the program are among them: ``model.freeze_feature_encoder()``.

    Args:
        scripts: Of one program.
    """
    read = [(script.name, script.tree) for script in scripts if script.tree is not None]
    defined = {each.name for _, tree in read for each in ast.walk(tree) if isinstance(each, _FUNCTIONS)}
    return [
        Replacement(name, node.lineno, ast.unparse(node))
        for name, tree in read
        for node in _list_statements(tree)
        if _freezes(node, defined)
    ]


def _freezes(node: ast.stmt, defined: Collection[str]) -> bool:
    """Whether it is ``parameter.requires_grad = False`` or ``model.requires_grad_(trains)``, with whatever but True."""
    value: ast.expr | None = None
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if last == "requires_grad_":
            value = next(iter((*call.args, *(each.value for each in call.keywords))), None)
        elif _FREEZES.search(last):
            return last not in defined
    elif isinstance(node, ast.Assign) and any(
        isinstance(each, ast.Attribute) and each.attr == "requires_grad" for each in node.targets
    ):
        value = node.value
    return value is not None and not (isinstance(value, ast.Constant) and value.value is True)


def _list_statements(tree: ast.Module) -> Iterable[ast.stmt]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, _FUNCTIONS) and node.name == "__init__":
            continue
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)):
            yield node
        waiting += [
            each for each in ast.iter_child_nodes(node) if isinstance(each, (ast.stmt, ast.excepthandler))
        ]


def _puts(node: ast.stmt, names: Collection[str]) -> bool:
    if isinstance(node, ast.Expr):
        call = node.value
        if not isinstance(call, ast.Call) or not call.args:
            return False
        last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        return last in _PUTS and any(
            isinstance(each, ast.Constant) and each.value in names for each in call.args[:2]
        )
    value = getattr(node, "value", None)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    made = value is not None and not isinstance(value, ast.Constant)
    return made and any(isinstance(each, ast.Attribute) and each.attr in names for each in targets)
