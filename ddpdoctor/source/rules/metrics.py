"""Rules of results that each rank has of its own part of the data: what they decide, and where they are told."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.calls import SAMPLERS
from ddpdoctor.source.kinds import Kinds, Value, kinds_of
from ddpdoctor.source.known import KNOWN_ROOTS
from ddpdoctor.source.losses import JOINING, ORDERS, LossReader
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.rules.data import samplers_of
from ddpdoctor.source.steps import find_forwards, is_backward, loaders_of, reach
from ddpdoctor.source.walking import (
    find_argument,
    find_keyword,
    is_spelled_out,
    name_last,
    names_in,
    own_nodes,
)

REPORTS = frozenset({"print", "info", "log", "add_scalar", "add_scalars", "warning", "write", "set_postfix"})
PADDING = re.compile("pad|duplicat|dedup|unique|remainder|uneven|truncat|for_metrics|aux_", re.IGNORECASE)
"""Parts of names of what knows that a sampler repeats samples."""
PLATEAUS = frozenset({"torch.optim.lr_scheduler.ReduceLROnPlateau"})
"""Schedulers that are given a result and change the learning rate by it."""
SIZES = frozenset({"len", "size", "shape", "numel", "batch_size"})
"""Names of numbers that are about the same on each rank."""
DEEPEST = 2
"""Functions over which a result is followed."""
CLOCKS = frozenset({"time", "perf_counter", "monotonic", "elapsed", "process_time"})
"""Names by which what is added up is time."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A loop over the data of one rank that counts something."""

    node: ast.For
    scope: Scope
    trains: bool
    counted: frozenset[str]
    """Variables that are added up."""
    samplers: tuple[Value, ...]
    """What may share out its data; one at least."""


def find_passes(kinds: Kinds) -> Iterator[Pass]:
    """Yield the loops of all files that train or evaluate over the part that a DistributedSampler gives a rank."""
    losses = LossReader(kinds.files)
    for module in kinds.files.modules:
        for scope in module.walk():
            loops = [each for each in own_nodes(scope.node) if isinstance(each, ast.For)]
            for node in loops:
                counted = _find_counted(node)
                spot = kinds.flow(scope).spot(node) if counted else None
                if spot is None or not spot.is_on:
                    continue
                loaders = loaders_of(node.iter, scope, kinds)
                samplers = tuple(one for each in loaders for one in samplers_of(each, kinds))
                if not samplers or any(each.name not in SAMPLERS for each in samplers):
                    continue
                calls = list(reach(node.body, scope, kinds))
                if not any(find_forwards(calls, kinds)):
                    continue
                trains = any(is_backward(call) for call, _ in calls)
                own = set(losses.find(scope)) if trains else None
                names = [name for name, value in counted if own is None or _mentioned(value, own) is not None]
                if names:
                    yield Pass(node, scope, trains, frozenset(names), samplers)


def _find_counted(loop: ast.For) -> list[tuple[str, ast.expr]]:
    """Return what is added up in a loop, and what is added: numbers of batches and samples decide nothing."""
    return [
        (each.target.id, each.value)
        for each in own_nodes(loop)
        if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name) and not _is_size(each.value)
        if CLOCKS.isdisjoint(names_in(each.value))
    ]


def _is_size(node: ast.expr) -> bool:
    """Whether a value is a number of batches or samples and nothing else."""
    if isinstance(node, ast.BinOp):
        return _is_size(node.left) and _is_size(node.right)
    if isinstance(node, ast.Subscript):
        return _is_size(node.value)
    return (
        isinstance(node, ast.Constant)
        or name_last(node.func if isinstance(node, ast.Call) else node) in SIZES
    )


def find_results(files: Files) -> Iterator[SourceFact]:
    """Yield what is wrong with the results of passes over the parts of the ranks.

    Rules: ``metric-unreduced`` for those of one rank's part in programs that reduce nothing; way: ``decides`` or
    ``told``; name: the variable. Of the loss of a training only what it decides: each rank may print its own.
    ``evaluation-padded`` for a sampler that may repeat samples, where the results of an evaluation are joined.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for each in find_passes(kinds):
        noticed = (RelatedPlace("noticed", each.scope.place(each.node)),)
        if not _joins_results(each.scope.module, kinds):
            used = _UseFinder(kinds).find(each.counted, each.scope, each.node)
            if used is not None and (used.way == "decides" or not each.trains):
                place = used.scope.place(used.node)
                yield SourceFact("metric-unreduced", place, noticed, {"way": used.way, "name": used.name})
        elif (
            not each.trains
            and not any(map(_drops, each.samplers))
            and not _knows_of_padding(each.scope.module, kinds)
        ):
            sampler = each.samplers[0]
            if sampler.scope is not None and sampler.call not in told:
                told.add(sampler.call)
                yield SourceFact("evaluation-padded", sampler.scope.place(sampler.call), noticed)


def _drops(sampler: Value) -> bool:
    """Whether a sampler is told to drop samples, or it cannot be told what it is told."""
    given = find_keyword(sampler.call, "drop_last", 5)
    return not is_spelled_out(sampler.call) or (
        given is not None and not (isinstance(given, ast.Constant) and given.value is False)
    )


def _knows_of_padding(module: Scope, kinds: Kinds) -> bool:
    for member in kinds.programs.members(module):
        if any(PADDING.search(name) for name in names_in(member.node)):
            return True
        for node in ast.walk(member.node):
            if isinstance(node, ast.Slice) and node.upper is not None and "len" in names_in(node.upper):
                return True
    return False


def _joins_results(module: Scope, kinds: Kinds) -> bool:
    """Whether anything in a program makes one result of several, by its name."""
    members = kinds.programs.members(module)
    names = (name for member in members for name in names_in(member.node))
    imports = (name for member in members for scope in member.walk() for name in scope.imports.values())
    return any(JOINING.search(name) for name in itertools.chain(names, imports))


@dataclass(frozen=True, slots=True)
class _Use:
    """What is done with a result."""

    way: str
    """decides or told."""
    name: str
    node: ast.AST
    scope: Scope


class _UseFinder:
    """Follows a result to what it decides, or else to where it is told."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._depth = 0

    def find(self, counted: frozenset[str], scope: Scope, after: ast.stmt) -> _Use | None:
        """Return how variables are used after a statement, also by who calls the function that returns them."""
        used, returned = self._follow(set(counted), scope, after)
        if (used is not None and used.way == "decides") or not returned or self._depth >= DEEPEST:
            return used
        self._depth += 1
        above = (self._find_result(call, home, returned) for call, home in self._kinds.callers(scope))
        found = next((each for each in above if each and (each.way == "decides" or used is None)), used)
        self._depth -= 1
        return found

    def _find_result(self, call: ast.Call, scope: Scope, places: set[int | None]) -> _Use | None:
        for statement, _ in self._kinds.flow(scope).statements:
            if isinstance(statement, ast.Assign) and statement.value is call:
                bound = {name for target in statement.targets for name in _bind(target, places)}
                return self.find(frozenset(bound), scope, statement)
        return None

    def _follow(
        self, names: set[str], scope: Scope, after: ast.stmt | None
    ) -> tuple[_Use | None, set[int | None]]:
        """Return the use within a function, and at which places of what it returns the variables are."""
        flow = self._kinds.flow(scope)
        start = flow.spot(after) if after is not None else None
        inside = {id(each) for each in ast.walk(after)} if after is not None else set()
        told: _Use | None = None
        returned: set[int | None] = set()
        for statement, spot in flow.statements:
            if id(statement) in inside or (start is not None and spot.number <= start.number):
                continue
            value = _asked(statement)
            name = _mentioned(value, names) if value is not None else None
            if value is None or name is None:
                if isinstance(statement, ast.Assign):  # bound to something else from here on
                    names.difference_update(
                        name for target in statement.targets for name in _bind(target, {None})
                    )
                continue
            if isinstance(statement, ast.If) and _only_tells(statement):
                continue
            if isinstance(statement, ast.Assign) and self._may_join(value, names, scope):
                names.difference_update(
                    name for target in statement.targets for name in _bind(target, {None})
                )
                continue
            if _compares(value, names) or self._hands_over(value, names, scope):
                return _Use("decides", name, statement, scope), returned
            if isinstance(statement, ast.Assign):
                places = _places(value, names)
                names.update(name for target in statement.targets for name in _bind(target, places))
            elif isinstance(statement, ast.Return):
                returned |= _places(value, names)
            elif told is None and isinstance(value, ast.Call) and name_last(value.func) in REPORTS:
                told = _Use("told", name, statement, scope)
        return told, returned

    def _may_join(self, value: ast.expr, names: set[str], scope: Scope) -> bool:
        """Whether a function that was not given has a variable and returns something: it may reduce over ranks."""
        files = self._kinds.files
        for call in ast.walk(value):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            given = [*call.args, *(each.value for each in call.keywords)]
            imported = any(call.func.id in each.imports for each in scope.outwards())
            root = (files.dotted(call.func, scope) or "").split(".")[0]
            unknown = imported and root not in KNOWN_ROOTS and files.function(call.func, scope) is None
            if unknown and any(_mentioned(each, names) is not None for each in given):
                return True
        return False

    def _hands_over(self, value: ast.expr, names: set[str], scope: Scope) -> bool:
        """Whether a variable is given to what decides by it: a function or object of the files, or a scheduler."""
        files = self._kinds.files
        for call in ast.walk(value):
            if not isinstance(call, ast.Call) or _mentioned(call, names) is None:
                continue
            if isinstance(call.func, ast.Attribute) and call.func.attr == "step":
                maker = files.find_maker(call.func.value, scope)
                if maker is not None and files.dotted(maker[0].func, maker[1]) in PLATEAUS:
                    return True
            called = self._kinds.called(call, scope) or self._find_method(call, scope)
            if called is None or self._depth >= DEEPEST:
                continue
            given = {each: find_argument(call, called, each) for each in called.bound}
            below = {
                each
                for each, node in given.items()
                if node is not None and _mentioned(node, names) is not None
            }
            self._depth += 1
            used = self._follow(below, called, None)[0] if below else None
            self._depth -= 1
            if used is not None and used.way == "decides":
                return True
        return False

    def _find_method(self, call: ast.Call, scope: Scope) -> Scope | None:
        """Return the method of an object whose class stands in the files: of one that is called, ``__call__``."""
        files = self._kinds.files
        made, name = files.find_made(call.func, scope), "__call__"
        if made is None and isinstance(call.func, ast.Attribute):
            made, name = files.find_made(call.func.value, scope), call.func.attr
        return made.functions.get(name) if made is not None else None


def _only_tells(statement: ast.If) -> bool:
    """Whether all that hangs on a test is what is printed."""
    body = [*statement.body, *statement.orelse]
    return all(
        isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Call)
        and name_last(each.value.func) in REPORTS
        for each in body
    )


def _asked(statement: ast.stmt) -> ast.expr | None:
    """Return the test of a statement, or its value."""
    if isinstance(statement, (ast.If, ast.While)):
        return statement.test
    return statement.value if isinstance(statement, (ast.Assign, ast.Return, ast.Expr)) else None


def _places(value: ast.expr, names: set[str]) -> set[int | None]:
    """Return which elements of a value mention a name; None where it is not taken apart."""
    if not isinstance(value, (ast.Tuple, ast.List)):
        return {None}
    return {place for place, each in enumerate(value.elts) if _mentioned(each, names) is not None}


def _bind(target: ast.expr, places: set[int | None]) -> Iterator[str]:
    """Yield the variables to which these elements of a value go."""
    apart = isinstance(target, (ast.Tuple, ast.List)) and None not in places
    for place, each in enumerate(target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]):
        if not apart or place in places:
            yield from (node.id for node in ast.walk(each) if isinstance(node, ast.Name))


def _compares(node: ast.expr, names: set[str]) -> bool:
    """Whether a value asks which of two is larger: whether a count is 0 at all decides nothing."""
    return any(
        isinstance(each, ast.Compare)
        and isinstance(each.ops[0], ORDERS)
        and _mentioned(each, names) is not None
        and not any(
            isinstance(side, ast.Constant) and side.value == 0 for side in (each.left, *each.comparators)
        )
        for each in ast.walk(node)
    )


def _mentioned(node: ast.AST, names: set[str]) -> str | None:
    return next((each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in names), None)
