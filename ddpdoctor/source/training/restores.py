"""Whether what a call loads comes to a ``load_state_dict``, here or in other functions of the files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.walking import find_argument, find_calls, own_nodes

DEEPEST = 3
"""Functions over which what is loaded is followed."""
RESTORES = frozenset({"load_state_dict", "set_state_dict", "restore_state_dict"})
OF_NUMBERS = re.compile(r"sampler|sched|loader|dataset|meter|timer|stopp", re.IGNORECASE)
"""Names of what has a state without tensors: places in the data, numbers of steps, rates."""
GIVES = frozenset({"update", "append", "extend", "setdefault"})
"""Methods of tables and lists that put something into them."""


def is_restored(load: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether what is loaded, or what is made of it, is given to ``load_state_dict``.

    Args:
        load: the call.
        scope: where it stands.
        kinds: what knows callers.
    """
    return _is_used(load, scope, kinds, 0)


def _is_used(source: ast.expr | str, scope: Scope, kinds: Kinds, depth: int) -> bool:
    """Whether a call's result, or a parameter, comes to ``load_state_dict`` from a function on."""
    names = _find_made(source, scope)
    for call in find_calls(scope):
        spend()
        given = [*call.args, *(each.value for each in call.keywords)]
        held = [each for each in given if _holds(each, source, names)]
        if not held:
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr in RESTORES:
            if OF_NUMBERS.search(ast.unparse(call.func.value)):
                continue
            return True
        for called in _list_called(call, scope, kinds) if depth < DEEPEST else ():
            if any(
                find_argument(call, called, name) in held and _is_used(name, called, kinds, depth + 1)
                for name in called.parameters
            ):
                return True
    if depth >= DEEPEST or not any(
        isinstance(each, ast.Return) and each.value is not None and _holds(each.value, source, names)
        for each in own_nodes(scope.node)
    ):
        return False
    return any(_is_used(call, home, kinds, depth + 1) for call, home in kinds.callers(scope))


def _list_called(call: ast.Call, scope: Scope, kinds: Kinds) -> list[Scope]:
    """Return the functions that a call may run: of an object that is not known, the methods of that name."""
    called = kinds.called(call, scope)
    if called is not None or not isinstance(call.func, ast.Attribute):
        return [called] if called is not None else []
    return kinds.methods(call.func.attr)


def _find_made(source: ast.expr | str, scope: Scope) -> set[str]:
    """Return the variables of a function that are made of what is loaded, or get a part of it."""
    names = {source} if isinstance(source, str) else set()
    given = [pair for node in own_nodes(scope.node) for pair in _list_given(node)]
    grown = True
    while grown:
        made = {
            name
            for name, values in scope.bound.items()
            if name not in names and any(_holds(value, source, names) for value in values)
        }
        made |= {name for name, value in given if name not in names and _holds(value, source, names)}
        grown = bool(made)
        names |= made
    return names


def _list_given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables that get something in a node, with what: by a loop, an item, or ``update`` and the like."""
    targets: list[ast.expr] = []
    value: ast.expr | None = None
    if isinstance(node, (ast.For, ast.comprehension)):
        targets, value = [node.target], node.iter
    elif isinstance(node, ast.Assign):
        targets = [
            each.value if isinstance(each, ast.Subscript) else each
            for each in node.targets
            if isinstance(each, (ast.Subscript, ast.Tuple, ast.List))
        ]
        value = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GIVES:
        targets, value = [node.func.value], node.args[-1] if node.args else None
    for target in targets if value is not None else ():
        yield from ((each.id, value) for each in ast.walk(target) if isinstance(each, ast.Name) and value)


def _holds(node: ast.expr, source: ast.expr | str, names: set[str]) -> bool:
    return any(each is source or (isinstance(each, ast.Name) and each.id in names) for each in ast.walk(node))
