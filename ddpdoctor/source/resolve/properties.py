"""What properties of a class give, and functions that return at their end alone."""

from __future__ import annotations

import ast

from ddpdoctor.source.resolve.scopes import Scope
from ddpdoctor.source.resolve.walking import own_nodes

PROPERTIES = frozenset({"property", "cached_property"})
"""Decorators by which a method is read as an attribute."""


def find_only_return(function: Scope) -> ast.expr | None:
    """Return what a function returns at its end, where it returns nowhere else."""
    returns = [each for each in own_nodes(function.node) if isinstance(each, ast.Return)]
    body = getattr(function.node, "body", [])
    return returns[0].value if len(returns) == 1 and body and body[-1] is returns[0] else None


def find_property(owner: Scope, name: str) -> tuple[ast.expr, Scope] | None:
    """Return what a property of a class gives, where it gives it at its end alone, and the function that does."""
    function = owner.functions.get(name)
    decorators = [ast.unparse(each) for each in getattr(function and function.node, "decorator_list", ())]
    if function is None or not any(each.rpartition(".")[2] in PROPERTIES for each in decorators):
        return None
    value = find_only_return(function)
    return (value, function) if value is not None else None
