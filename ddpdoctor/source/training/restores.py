"""Whether what a call loads comes to a ``load_state_dict``, here or in other functions of the files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.walking import find_argument, find_calls, find_keyword, name_last, own_nodes

DEEPEST = 3
"""Functions over which what is loaded is followed."""
RESTORES = frozenset({"load_state_dict", "set_state_dict", "restore_state_dict"})
OF_NUMBERS = re.compile(r"sampler|sched|scaler|loader|dataset|meter|timer|stopp", re.IGNORECASE)
"""Names of what has a state without tensors: places in the data, numbers of steps, rates."""
GENERIC = frozenset({"state_dict", "model", "module", "weights", "params", "net", "model_state_dict"})
"""Keys under which anybody keeps the weights of a model."""
OF_TENSORS = re.compile(r"state_dict|model|net|optim|ema|weight|param|embed", re.IGNORECASE)
"""Names of what has tensors, in a table that is saved."""
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


def is_of_numbers(load: ast.Call, scope: Scope) -> bool:
    """Whether what is loaded is given to what has a state without tensors, in the same function.

    Args:
        load: the call.
        scope: where it stands.
    """
    names = _find_made(load, scope)
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr in RESTORES
        and OF_NUMBERS.search(ast.unparse(call.func.value)) is not None
        and any(_holds(each, load, names) for each in call.args)
        for call in find_calls(scope)
    )


def is_of_program(load: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether a program asks what it loads for a key that a ``torch.save`` of its files writes, and few others do.

    Args:
        load: the call.
        scope: where it stands.
        kinds: what knows the files.
    """
    names = _find_made(load, scope)
    asked = {key for node in own_nodes(scope.node) for key in _list_asked(node, load, names)} - GENERIC
    return bool(asked) and not asked.isdisjoint(_list_saved(kinds))


def _list_asked(node: ast.AST, load: ast.Call, names: set[str]) -> Iterator[str]:
    """Yield the keys by which an expression reads, or asks for, a part of what is loaded."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        pairs = [(node.value, node.slice)]
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
        pairs = [(node.comparators[0], node.left)]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        pairs = [(node.func.value, each) for each in node.args[:1]]
    for table, key in pairs:
        loaded = table is load or (isinstance(table, ast.Name) and table.id in names)
        if loaded and isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


@once
def _list_saved(kinds: Kinds) -> frozenset[str]:
    """Return the keys of the tables that ``torch.save`` writes, in any of the files."""
    return frozenset(
        key
        for module in kinds.files.modules
        for call, scope, name in kinds.programs.list_calls(module)
        if name == "torch.save" and (saved := find_keyword(call, "obj", 0)) is not None
        for key in _list_keys(saved, scope)
    )


def _list_keys(saved: ast.expr, scope: Scope) -> Iterator[str]:
    """Yield the keys of a table with tensors that is spelled out, there or where its variable is made."""
    found = scope.lookup(saved.id) if isinstance(saved, ast.Name) else None
    for each in found[1] if found is not None else [saved]:
        if OF_TENSORS.search(ast.unparse(each)) is None:
            continue
        if isinstance(each, ast.Dict):
            yield from (str(key.value) for key in each.keys if isinstance(key, ast.Constant))
        elif isinstance(each, ast.Call) and name_last(each.func) == "dict":
            yield from (keyword.arg for keyword in each.keywords if keyword.arg is not None)


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
