"""Tests on what a rank's own batch holds: each rank has another batch, and other ranks may go the other way."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.rank_tests import Difference
from ddpdoctor.source.resolve.walking import find_argument, name_last, names_in, own_nodes
from ddpdoctor.source.sameness.losses import JOINING, ORDERS

DEEPEST = 2
"""Functions over which a batch is followed."""
ROUNDS = 4
"""Variables over which a value is followed against the order of the lines."""
ASKS = frozenset({"any", "all", "sum", "max", "min", "count_nonzero"})
"""Methods of a tensor whose result is about what it holds. Its size is not: batches are of one size on all ranks."""
SIZES = frozenset({"numel", "size"})
PICKS = frozenset({"nonzero", "masked_select", "argwhere", "where", "unique"})
"""Functions and methods that pick some elements by what they are."""


class BatchReader:
    """Knows which tests of a function are about the contents of a batch."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._loaded: dict[Scope, tuple[tuple[ast.expr, frozenset[str]], ...]] = {}
        self._over_loaders: dict[ast.expr, bool] = {}
        self._given: dict[tuple[Scope, str, int], bool] = {}

    def read(self, test: ast.expr, scope: Scope) -> Difference | None:
        """Return that ranks differ in a test on what a batch holds; None for all others.

        Such are: whether there is a batch at all (``if batch is None``), whether any of its samples were picked
        (``if not kept``, ``if mask.sum() == 0``), and what its numbers are (``if targets.max() > 9``).

        Args:
            test: the test.
            scope: where it stands.
        """
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.read(test.operand, scope)
            return inner.negate() if inner is not None else None
        if isinstance(test, ast.BoolOp):
            found = [each for each in (self.read(value, scope) for value in test.values) if each is not None]
            return found[0] if found else None
        if not kinds_of(self._files).programs.mentions(scope.module, "DataLoader"):
            return None
        names = frozenset(names_in(test))
        if not self._asks(test, names, names):  # whichever of them hold a batch
            return None
        batches, picked = self._find(names, scope, 0)
        if not batches or not self._asks(test, batches, picked):
            return None
        names = frozenset(each.id for each in ast.walk(test) if isinstance(each, ast.Name))
        if names & self._files.find_reduced(scope) or _joins(test):
            return None
        return Difference("batch", True, ast.dump(test), certain=False)

    def _asks(self, test: ast.expr, batches: frozenset[str], picked: frozenset[str]) -> bool:
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.left, test.comparators[0]
            if isinstance(test.ops[0], (ast.Is, ast.IsNot)):
                none = isinstance(right, ast.Constant) and right.value is None
                return none and isinstance(left, ast.Name) and left.id in batches
            if not isinstance(test.ops[0], (*ORDERS, ast.Eq, ast.NotEq)):
                return False
            return self._holds(left, batches, picked) or self._holds(right, batches, picked)
        if isinstance(test, ast.Name):
            return test.id in picked
        return self._holds(test, batches, picked)

    def _holds(self, node: ast.expr, batches: frozenset[str], picked: frozenset[str]) -> bool:
        """Whether a value is about what a batch holds: how much was picked of it, or a number out of it."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "item":
                return self._holds(node.func.value, batches, picked)
            if node.func.attr in ASKS and not isinstance(node.func.value, ast.Call):
                return _mentions(node.func.value, batches | picked)
            return node.func.attr in SIZES and _mentions(node.func.value, picked)
        if isinstance(node, ast.Call):
            last = name_last(node.func)
            return last == "len" and len(node.args) == 1 and _is_one(node.args[0], picked)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            return node.value.attr == "shape" and _mentions(node.value.value, picked)
        return False

    def _find(self, names: frozenset[str], scope: Scope, depth: int) -> tuple[frozenset[str], frozenset[str]]:
        """Return which variables of a function hold a batch or a part of it, and which hold some of it.

        Args:
            names: the variables; those of which their values are made are told as well.
            scope: the function.
            depth: functions over which a batch was followed so far.
        """
        sources = _list_sources(names, scope)
        batches = {each for each in sources & scope.loops if self._is_loaded(each, scope)}
        if depth < DEEPEST and not isinstance(scope.node, (ast.Module, ast.ClassDef)):
            batches |= {
                each for each in sources.intersection(scope.parameters) if self._is_given(each, scope, depth)
            }
        picked: set[str] = set()
        for _ in range(ROUNDS if batches else 0):
            for name in sources & scope.bound.keys():
                values = scope.bound[name]
                known = [each for each in values if each is not UNKNOWN]
                if not known or name in batches | picked or len(known) < len(values):
                    continue
                if all(_picks(each, batches | picked) for each in known):
                    picked.add(name)
                elif all(_is_part(each, batches) for each in known):
                    batches.add(name)
        return frozenset(batches), frozenset(picked)

    def _is_loaded(self, name: str, scope: Scope) -> bool:
        """Whether a loop over a loader of data binds a variable."""
        if scope not in self._loaded:
            self._loaded[scope] = tuple(_list_targets(scope))
        return any(
            self._goes_over_loader(iterable, scope)
            for iterable, names in self._loaded[scope]
            if name in names
        )

    def _goes_over_loader(self, iterable: ast.expr, scope: Scope) -> bool:
        if iterable not in self._over_loaders:
            kinds = kinds_of(self._files)
            found = [each for each in kinds.find(iterable, scope) if each.kind != "none"]
            self._over_loaders[iterable] = bool(found) and all(
                each.kind in ("loader", "prepared") for each in found
            )
        return self._over_loaders[iterable]

    def _is_given(self, parameter: str, function: Scope, depth: int) -> bool:
        """Whether each call of a function gives it a batch, or a part of one."""
        key = function, parameter, depth
        if key not in self._given:
            calls = kinds_of(self._files).callers(function)
            self._given[key] = bool(calls) and all(
                isinstance(given := find_argument(call, function, parameter), ast.expr)
                and _is_part(given, names := frozenset(names_in(given)))
                and _is_part(given, self._find(names, home, depth + 1)[0])
                for call, home in calls
            )
        return self._given[key]


def _list_targets(scope: Scope) -> Iterator[tuple[ast.expr, frozenset[str]]]:
    """Yield what the loops of a function go over, and the variables that each binds to an element of it."""
    for node in own_nodes(scope.node):
        if not isinstance(node, (ast.For, ast.AsyncFor)):
            continue
        target = node.target
        if isinstance(node.iter, ast.Call) and name_last(node.iter.func) == "enumerate":
            if not isinstance(target, ast.Tuple):
                continue
            target = target.elts[-1]
        yield node.iter, frozenset(each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def _list_sources(names: frozenset[str], scope: Scope) -> set[str]:
    """Return variables of a function, and those that their values are made of."""
    found, waiting = set(names), list(names)
    while waiting:
        for value in scope.bound.get(waiting.pop(), ()):
            fresh = {*names_in(value)} - found
            found |= fresh
            waiting += fresh
    return found


def _is_part(node: ast.expr, batches: set[str] | frozenset[str]) -> bool:
    """Whether a value is a batch, an element of it, or the same on another device."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute) or node.func.attr not in _KEEPS:
                return False
            node = node.func.value
        elif isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Constant, ast.Name)):
            return False
        else:
            node = node.value
    return isinstance(node, ast.Name) and node.id in batches


_KEEPS = frozenset({"to", "cuda", "cpu", "get", "long", "float", "clone", "detach"})
"""Methods after which it is still all of the batch."""


def _picks(node: ast.expr, batches: set[str]) -> bool:
    """Whether a value is some of a batch, by what its samples are."""
    if isinstance(node, (ast.ListComp, ast.DictComp)):
        heads = node.generators
        return any(each.ifs for each in heads) and any(_mentions(each.iter, batches) for each in heads)
    if isinstance(node, ast.Subscript):
        return _is_test(node.slice) and _mentions(node.value, batches)
    if isinstance(node, ast.Compare):
        return any(_mentions(each, batches) for each in (node.left, *node.comparators))
    if isinstance(node, ast.Call):
        return name_last(node.func) in PICKS and _mentions(node, batches) and not _joins(node)
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.BitAnd, ast.BitOr))
        and _mentions(node, batches)
    )


def _is_test(node: ast.expr) -> bool:
    """Whether a subscript takes those elements for which something holds."""
    return isinstance(node, ast.Compare) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)
    )


def _is_one(node: ast.expr, names: frozenset[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _mentions(node: ast.AST, names: set[str] | frozenset[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def _joins(node: ast.AST) -> bool:
    """Whether a call in it may make one value of all ranks' of it."""
    return any(isinstance(each, ast.Call) and JOINING.search(name_last(each.func)) for each in ast.walk(node))
