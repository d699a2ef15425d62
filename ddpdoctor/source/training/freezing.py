"""Statements that freeze parameters or train them again, also where a function of the files does it."""

from __future__ import annotations

import ast

from ddpdoctor.source.resolve.flow import Flow
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.walking import find_argument

PASSES = frozenset({"list", "tuple", "sorted", "reversed", "enumerate", "iter"})
"""Functions whose result has the elements of what they are given."""


def read_switch(statement: ast.stmt, scope: Scope, kinds: Kinds) -> tuple[ast.expr, bool] | None:
    """Return the part whose parameters a statement freezes (False) or trains (True).

    ``for p in net.body.parameters(): p.requires_grad = False``, ``net.body.requires_grad_(False)``, or the call of a
    function that does so with what it is given: ``set_trainable(net.body, False)``.
    """
    if isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad" and _is_bool(value):
            part = path_of_loop(target.value, statement, scope, kinds)
            return (part, bool(ast.literal_eval(value))) if part is not None else None
        return None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
        if call.args and not _is_bool(call.args[0]):
            return None
        return _find_part(call.func.value, statement, scope, kinds), not freezes(call)
    function = kinds.files.function(call.func, scope)
    return _read_helper(call, function, kinds) if function is not None else None


def _find_part(owner: ast.expr, statement: ast.stmt, scope: Scope, kinds: Kinds) -> ast.expr:
    """Return the part whose parameters a loop goes through; what is not the variable of such a loop is the part."""
    part = path_of_loop(owner, statement, scope, kinds) if isinstance(owner, ast.Name) else None
    return part if part is not None else owner


def _is_bool(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _read_helper(call: ast.Call, function: Scope, kinds: Kinds) -> tuple[ast.expr, bool] | None:
    """Return what the call of a function switches; nothing where tests in it decide, or where it switches more."""
    found: list[tuple[ast.expr, bool]] = []
    for statement, spot in kinds.flow(function).statements:
        part, value = _read_inside(statement, function, kinds)
        if part is None or value is None:
            continue
        tests = [each for each in ast.walk(function.node) if isinstance(each, (ast.If, ast.Match, ast.Try))]
        if not spot.is_on or any(statement in ast.walk(each) for each in tests):
            return None
        own = find_argument(call, function, value.id) if isinstance(value, ast.Name) else value
        moved = _substitute(part, function, call)
        if own is None or not _is_bool(own) or moved is None:
            return None
        if ast.literal_eval(own) and any(
            isinstance(each, ast.Name) and each.id == "self" for each in ast.walk(part)
        ):
            return None  # what a method trains of its own object is reported at its own line
        found.append((moved, bool(ast.literal_eval(own))))
    return found[0] if len(found) == 1 else None


def _read_inside(
    statement: ast.stmt, function: Scope, kinds: Kinds
) -> tuple[ast.expr | None, ast.expr | None]:
    """Return the part that a statement of a function switches, and to what: a constant or a parameter."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
        target = statement.targets[0]
        if target.attr == "requires_grad":
            return path_of_loop(target.value, statement, function, kinds), statement.value
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "requires_grad_"
    ):
        part = _find_part(call.func.value, statement, function, kinds)
        return part, call.args[0] if call.args else ast.Constant(True)
    return None, None


def _substitute(node: ast.expr, function: Scope, call: ast.Call, depth: int = 0) -> ast.expr | None:
    """Return an expression of a function as its caller would write it; None where that cannot be told."""
    if isinstance(node, ast.Attribute):
        inner = _substitute(node.value, function, call, depth)
        return (
            ast.copy_location(ast.Attribute(inner, node.attr, ast.Load()), call)
            if inner is not None
            else None
        )
    if not isinstance(node, ast.Name) or depth > 3:
        return None
    if node.id == "self" and function.find_class() is not None:  # of a method: what it is called of
        return call.func.value if isinstance(call.func, ast.Attribute) else None
    if node.id in function.parameters and len(function.bound.get(node.id, ())) == 1:
        return find_argument(call, function, node.id)
    values = function.bound.get(node.id, [])
    return _substitute(values[0], function, call, depth + 1) if len(values) == 1 else None


def path_of_loop(node: ast.expr, statement: ast.stmt, scope: Scope, kinds: Kinds) -> ast.expr | None:
    """Return ``model.encoder`` for the ``p`` of ``for p in model.encoder.parameters()``."""
    if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias"):
        return node.value
    if not isinstance(node, ast.Name):
        return None
    flow = kinds.flow(scope)
    spot = flow.spot(statement)
    for each in flow.holding(node.id, spot) or () if spot is not None else ():
        call = _find_held(each.value, flow) if each.kind == "loop" else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            return call.func.value if call.func.attr in ("parameters", "named_parameters") else None
    return None


def _find_held(value: ast.expr | None, flow: Flow) -> ast.expr | None:
    """Return what a loop goes through, also where a variable has held it since one assignment."""
    call = _without_slice(value)
    spot = flow.spot(call) if isinstance(call, ast.Name) else None
    held = flow.holding(call.id, spot) if isinstance(call, ast.Name) and spot is not None else None
    if held is not None and len(held) == 1 and held[0].kind == "assign" and held[0].index is None:
        return _without_slice(held[0].value)
    return call


def _without_slice(node: ast.expr | None) -> ast.expr | None:
    """Return ``model.parameters()`` of ``list(model.parameters())[:2]`` and the like: some or all of it."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in PASSES
            and node.args
        ):
            node = node.args[0]
        else:
            return node


def freezes(call: ast.Call) -> bool:
    """Whether it is ``part.requires_grad_(False)``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "requires_grad_":
        return False
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value is False
