"""Walking over syntax trees: what stands in a scope itself, without the functions and classes in it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.resolve.scopes import Scope
from ddpdoctor.source.resolve.tree_nodes import OWN, children, walk_own

T = TypeVar("T")
TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))
"""``except*`` came with Python 3.11."""
AGAIN = 8
"""Nodes of a list that was made before which cost as much as one that is looked for."""
KEPT = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Return what is inside of a node, without what is inside of functions and classes in it."""
    return iter(keep(node, OWN, _walk_own) if isinstance(node, KEPT) else _walk_own(node))


def keep(node: ast.AST, name: str, make: Callable[[ast.AST], Iterable[T]]) -> tuple[T, ...]:
    """Return what is made of a node, which is kept with it under a name: a dozen rules ask for it."""
    kept: tuple[T, ...] | None = getattr(node, name, None)
    if kept is None:
        kept = tuple(make(node))
        setattr(node, name, kept)
    else:
        spend(1 + len(kept) // AGAIN)
    return kept


def _walk_own(node: ast.AST) -> list[ast.AST]:
    found = walk_own(node)
    spend(1 + len(found))
    return found


def find_calls(scope: Scope) -> Iterator[ast.Call]:
    """Return the calls that stand in a scope itself, in order of the lines."""
    if scope.calls is None:
        calls = (node for node in own_nodes(scope.node) if isinstance(node, ast.Call))
        scope.calls = tuple(sorted(calls, key=lambda call: (call.lineno, call.col_offset)))
    spend(1 + len(scope.calls) // AGAIN)
    return iter(scope.calls)


def name_last(node: ast.AST) -> str:
    """Return ``barrier`` for ``dist.barrier`` and for ``barrier``; an empty text for other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def find_keyword(call: ast.Call, name: str, place: int | None = None) -> ast.expr | None:
    """Return the argument of a call by its keyword, or by its place where that is given."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if place is None or len(call.args) <= place or any(isinstance(e, ast.Starred) for e in call.args):
        return None
    return call.args[place]


def is_spelled_out(call: ast.Call) -> bool:
    """Whether a call has neither ``*args`` nor ``**kwargs``."""
    return not any(isinstance(each, ast.Starred) for each in call.args) and all(k.arg for k in call.keywords)


def find_argument(call: ast.Call, function: Scope, name: str) -> ast.expr | None:
    """Return what a call gives for a parameter of a function of the files; None where it gives nothing that is seen.

    Arguments before the first ``*rest`` have their places whatever that holds.
    """
    for each in call.keywords:
        if each.arg == name:
            return each.value
    if function.places is None:
        function.places = _place_parameters(function)
    place = function.places.get(name)
    if place is None or place >= len(call.args):
        return None
    starred = any(isinstance(each, ast.Starred) for each in call.args[: place + 1])
    return None if starred else call.args[place]


def _place_parameters(function: Scope) -> dict[str, int]:
    """Return the place of each parameter among the arguments of a call."""
    bound = function.outer is not None and isinstance(function.outer.node, ast.ClassDef)
    static = any(
        isinstance(each, ast.Name) and each.id == "staticmethod"
        for each in getattr(function.node, "decorator_list", ())
    )
    keyed = 0 if isinstance(function.node, (ast.Module, ast.ClassDef)) else len(function.node.args.kwonlyargs)
    names = function.parameters[int(bound and not static) : len(function.parameters) - keyed]
    return {name: place for place, name in enumerate(names)}


def is_true(node: ast.expr | None) -> bool:
    """Whether an argument is ``True`` as it stands."""
    return isinstance(node, ast.Constant) and node.value is True


def is_false(node: ast.expr) -> bool:
    """Whether a value is ``False``, ``None`` or another constant that does not hold."""
    return isinstance(node, ast.Constant) and not node.value


def is_none(node: ast.expr) -> bool:
    """Whether a value is ``None`` as it stands."""
    return isinstance(node, ast.Constant) and node.value is None


def is_main_guard(test: ast.expr) -> bool:
    """Whether it is ``__name__ == "__main__"``."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = [test.left, test.comparators[0]]
    named = any(isinstance(each, ast.Name) and each.id == "__name__" for each in sides)
    return named and any(isinstance(each, ast.Constant) and each.value == "__main__" for each in sides)


def names_in(node: ast.AST) -> Iterator[str]:
    """Return the names, attributes, keywords and parameters that stand in a node."""
    return iter(keep(node, "_names", _list_names))


def _list_names(node: ast.AST) -> Iterator[str]:
    waiting = [node]
    for each in waiting:  # in the order of ast.walk: the list grows
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, (ast.keyword, ast.arg)) and each.arg:
            yield each.arg
        waiting += children(each)


def show_arguments(call: ast.Call) -> str:
    """Return what a call is given, as it stands."""
    return ", ".join(map(ast.unparse, (*call.args, *call.keywords)))
