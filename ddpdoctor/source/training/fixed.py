"""What a program gives its variables and settings by itself, so that no user chooses it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, name_last, own_nodes
from ddpdoctor.source.training.options import HOLDERS, name_option


@once
def _known_of(files: Files) -> dict[tuple[str, Scope], list[object] | None]:
    """Return the table of what a program gives settings of a name, to be filled."""
    return {}


def list_fixed(node: ast.expr, scope: Scope, files: Files) -> list[object] | None:
    """Return the constants of which a run has one for an expression; None where it may have something else.

    That is a variable to which constants alone are assigned, also by a loop over them, an entry of a dictionary that
    stands in the file, and a setting that the program alone sets or that has ``choices``.

    Args:
        node: the expression.
        scope: where it stands.
        files: all that are read together.
    """
    if isinstance(node, ast.Name) and (found := scope.lookup(node.id)) is not None:
        home, bound = found
        return _list_constants(list(_list_bound(node.id, home, bound))) if bound else None
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        found = scope.lookup(node.value.id)
        table = found[1][0] if found is not None and len(found[1]) == 1 else None
        pairs = zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
        key = ast.unparse(node.slice)
        return _list_constants([value for name, value in pairs if name and ast.unparse(name) == key])
    if isinstance(node, ast.Call) and name_last(node.func) == "getattr" and len(node.args) == 3:
        name, default = node.args[1], _list_constants(node.args[2:])
        given = _list_given(str(name.value), scope, files) if isinstance(name, ast.Constant) else None
        return None if given is None or default is None else default + given
    if isinstance(node, ast.Attribute):
        return _list_given(node.attr, scope, files) or None
    return [node.value] if isinstance(node, ast.Constant) else None


def _list_constants(values: list[ast.expr]) -> list[object] | None:
    """Return the values of constants; None where there is none, or another expression among them."""
    constants: list[object] = [
        each.value for each in values if isinstance(each, ast.Constant) and each is not UNKNOWN
    ]
    return constants if constants and len(constants) == len(values) else None


def _list_bound(name: str, home: Scope, bound: list[ast.expr]) -> Iterator[ast.expr]:
    """Yield what is bound to a name; for a loop over a list that stands there, each of its elements."""
    unknown = sum(each is UNKNOWN for each in bound)
    yield from (each for each in bound if each is not UNKNOWN)
    for node in own_nodes(home.node) if unknown else ():
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id == name:
            unknown -= 1
            yield from node.iter.elts if isinstance(node.iter, (ast.Tuple, ast.List)) else [UNKNOWN]
    if unknown:
        yield UNKNOWN


def _list_given(name: str, scope: Scope, files: Files) -> list[object] | None:
    """Return the constants that a program gives settings of a name; None where it gives one something else."""
    known = _known_of(files)
    key = name, scope.module
    if key not in known:
        given = list(_find_given(name, files.find_related(scope.module), files))
        known[key] = _list_constants(given) if given else []
    return known[key]


def _find_given(name: str, modules: frozenset[Scope], files: Files) -> Iterator[ast.expr]:
    for module in modules:
        for scope in module.walk():
            if isinstance(scope.node, ast.ClassDef) and name in scope.bound:
                yield from scope.bound[name]
                yield from _find_in_objects(scope, modules)
            for node in own_nodes(scope.node):
                if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if any(isinstance(each, ast.Attribute) and each.attr == name for each in targets):
                        yield node.value if isinstance(node, ast.Assign) else UNKNOWN
            for call in find_calls(scope):
                last = name_last(call.func)
                if last == "add_argument" and name_option(call) == name:
                    choices = find_keyword(call, "choices")
                    yield from choices.elts if isinstance(choices, (ast.Tuple, ast.List)) else [UNKNOWN]
                elif last in HOLDERS or files.find_class(call.func, scope) is not None:
                    given = find_keyword(call, name)
                    yield from [given] if given is not None else []


def _find_in_objects(owner: Scope, modules: frozenset[Scope]) -> Iterator[ast.expr]:
    """Yield what is not known where objects of a class get their settings otherwise: ``tyro.cli(Config)``.

    A class is also called without arguments in their places, is the type of a parameter, or has its attributes read.
    """
    name = owner.name.rpartition(".")[2] if owner.name else ""
    for module in modules:
        plain = set()
        for node in ast.walk(module.node):
            if isinstance(node, ast.Call) and not node.args and all(each.arg for each in node.keywords):
                plain.add(id(node.func))
            elif isinstance(node, ast.Attribute):
                plain.add(id(node.value))
            elif isinstance(node, ast.FunctionDef) and not node.decorator_list:
                plain |= {id(each.annotation) for each in (*node.args.args, *node.args.kwonlyargs)}
        yield from (
            UNKNOWN
            for node in ast.walk(module.node)
            if isinstance(node, (ast.Name, ast.Attribute))
            and name_last(node) == name
            and id(node) not in plain
        )
