"""Variables that a collective made equal on all ranks, in the function itself or in one of the files that it calls."""

from __future__ import annotations

import ast
import re

from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.walking import find_argument, find_calls, name_last, own_nodes

TO_ONE = frozenset(
    {"torch.distributed.reduce", "torch.distributed.gather", "torch.distributed.gather_object"}
)
"""Collectives after which one rank alone has the result."""
INTO_FIRST = frozenset(
    f"torch.distributed.{name}"
    for name in (
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_to_all",
        "all_to_all_single",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
    )
)
"""Collectives whose result is their first argument; what they are given beside it stays as it was."""
WORDS = ("reduce", "broadcast", "gather", "scatter", "sync")
"""Parts of names of functions that were not given, and change what they are given."""
NEW = frozenset({"clone", "copy", "deepcopy", "item", "mean", "sum", "to_list", "tolist"})
"""Methods and functions that give a new tensor, or a number."""
VIEWS = re.compile(
    r"as_tensor|reshape|view|detach|squeeze|flatten|ravel|chunk|split|from_numpy|narrow|permute|transpose"
)
"""Functions of torch that may give the memory that they are given."""
DEEPEST = 3
"""Variables that one value passes through."""


class ReducedReader:
    """Knows what calls make equal on all ranks."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._changed: dict[Scope, frozenset[str]] = {}
        self._found: dict[Scope, set[str]] = {}

    def find_all(self, scope: Scope) -> set[str]:
        """Return the variables of a function that its calls make equal on all ranks, and what these are elements of.

        Args:
            scope: the function.
        """
        if scope not in self._found:
            self._found[scope] = self._find_all(scope)
        return self._found[scope]

    def _find_all(self, scope: Scope) -> set[str]:
        found = set().union(*(self.find(call, scope) for call in find_calls(scope)))
        for loop in own_nodes(scope.node) if found else ():
            if isinstance(loop, (ast.For, ast.AsyncFor)) and not found.isdisjoint(_list_names([loop.target])):
                found |= _list_shared(loop.iter)
        return found

    def find(self, call: ast.Call, scope: Scope) -> set[str]:
        """Return the variables that one call makes equal on all ranks.

        Of a function of the files only those that it changes: one that clones its argument before the ``all_reduce``
        leaves the argument as it was.

        Args:
            call: any call.
            scope: where it stands.
        """
        name = self._files.dotted(call.func, scope) or ""
        if name in TO_ONE:
            return set()
        if name in INTO_FIRST and call.args:
            return _list_names(call.args[:1])
        function = self._files.function(call.func, scope)
        given = [*call.args, *(each.value for each in call.keywords)]
        if function is not None and isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            changed = self._list_changed(function)
            if not changed:
                return set()
            left = [
                find_argument(call, function, each) for each in function.parameters if each not in changed
            ]
            return _list_names([each for each in given if not any(each is one for one in left)])
        return _list_names(given) if any(word in name.rpartition(".")[2] for word in WORDS) else set()

    def _list_changed(self, function: Scope) -> frozenset[str]:
        """Return the parameters of a function that it makes equal on all ranks."""
        if function not in self._changed:
            self._changed[function] = frozenset()  # where it calls itself
            found = [(call, self.find(call, function)) for call in find_calls(function)]
            found = [(call, changed) for call, changed in found if changed]
            self._changed[function] = frozenset(
                each for each in function.parameters if _is_among(each, function, found)
            )
        return self._changed[function]


def _is_among(parameter: str, function: Scope, found: list[tuple[ast.Call, set[str]]]) -> bool:
    """Whether what a parameter was given for is among what calls of its function change."""
    if not found:
        return False
    names = {parameter}
    for _ in range(DEEPEST):
        for name, values in function.bound.items():
            if any(value is not UNKNOWN and not names.isdisjoint(_list_shared(value)) for value in values):
                names.add(name)
        for loop in own_nodes(function.node):
            if isinstance(loop, (ast.For, ast.AsyncFor)) and not names.isdisjoint(_list_shared(loop.iter)):
                names |= _list_names([loop.target])
    copies = [
        value.lineno
        for value in function.bound.get(parameter, ())
        if value is not UNKNOWN and not _list_shared(value)
    ]
    return any(changed & names and all(call.lineno < line for line in copies) for call, changed in found)


def _list_shared(value: ast.expr) -> set[str]:
    """Return the variables with which a value may share memory."""
    if isinstance(value, ast.Name):
        return {value.id}
    if isinstance(value, (ast.Attribute, ast.Subscript, ast.Starred)):
        return _list_shared(value.value)
    if isinstance(value, (ast.Tuple, ast.List)):
        return set().union(*map(_list_shared, value.elts))
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)):
        return _list_shared(value.elt)
    if isinstance(value, ast.IfExp):
        return _list_shared(value.body) | _list_shared(value.orelse)
    if isinstance(value, ast.Call):
        last = name_last(value.func)
        of_torch = ast.unparse(value.func).startswith("torch.")
        if last in NEW or (of_torch and not VIEWS.search(last)):
            return set()
        return _list_shared(value.func).union(*map(_list_shared, value.args))
    return set()


def _list_names(nodes: list[ast.expr]) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
