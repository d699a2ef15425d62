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
from ddpdoctor.source.losses import ORDERS
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.rules.data import samplers_of
from ddpdoctor.source.steps import find_forwards, is_backward, loaders_of, reach
from ddpdoctor.source.walking import find_argument, find_keyword, is_spelled_out, names_in, own_nodes

JOINING = re.compile("reduce(?!_?lr)|gather|metric|sync|average_|accelerat|broadcast", re.IGNORECASE)
"""Parts of names of what makes one result of those of all ranks; ReduceLROnPlateau does not."""
REPORTS = frozenset({"print", "info", "log", "add_scalar", "add_scalars", "warning", "write", "set_postfix"})
PADDING = re.compile("pad|duplicat|dedup|unique|remainder|uneven|truncat|for_metrics|aux_", re.IGNORECASE)
"""Parts of names of what knows that a sampler repeats samples."""
PLATEAUS = frozenset({"torch.optim.lr_scheduler.ReduceLROnPlateau"})
"""Schedulers that are given a result and change the learning rate by it."""
DEEPEST = 2
"""Functions over which a result is followed."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A loop over the data of one rank that trains nothing and counts something."""

    node: ast.For
    scope: Scope
    counted: frozenset[str]
    """Variables that are added up."""
    samplers: tuple[Value, ...]
    """What may share out its data; one at least."""


def evaluations(kinds: Kinds) -> Iterator[Evaluation]:
    """Yield the loops of all files that evaluate over the part that a DistributedSampler gives a rank."""
    for module in kinds.files.modules:
        for scope in module.walk():
            loops = [each for each in own_nodes(scope.node) if isinstance(each, ast.For)]
            for node in loops:
                counted = frozenset(
                    each.target.id
                    for each in own_nodes(node)
                    if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name)
                )
                spot = kinds.flow(scope).spot(node) if counted else None
                if spot is None or not spot.is_on:
                    continue
                loaders = loaders_of(node.iter, scope, kinds)
                samplers = tuple(one for each in loaders for one in samplers_of(each, kinds))
                if not samplers or any(each.name not in SAMPLERS for each in samplers):
                    continue
                calls = list(reach(node.body, scope, kinds))
                if not any(is_backward(call) for call, _ in calls) and any(find_forwards(calls, kinds)):
                    yield Evaluation(node, scope, counted, samplers)


def find_results(files: Files) -> Iterator[SourceFact]:
    """Yield what is wrong with the results of evaluations over the parts of the ranks.

    Rules: ``metric-unreduced`` for those of one rank's part in programs that reduce nothing; names: ``decides`` or
    ``told``, and the variable. ``evaluation-padded`` for a sampler that may repeat samples, where results are joined.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for each in evaluations(kinds):
        noticed = (RelatedPlace("noticed", each.scope.place(each.node)),)
        if not _joins_results(each.scope.module, kinds):
            used = _UseFinder(kinds).find(each.counted, each.scope, each.node)
            if used is not None:
                place = used.scope.place(used.node)
                yield SourceFact("metric-unreduced", place, noticed, (used.way, used.name))
        elif not any(map(_drops, each.samplers)) and not _knows_of_padding(each.scope.module, kinds):
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
        above = (self._find_result(call, home) for call, home in self._kinds.callers(scope))
        found = next((each for each in above if each and (each.way == "decides" or used is None)), used)
        self._depth -= 1
        return found

    def _find_result(self, call: ast.Call, scope: Scope) -> _Use | None:
        for statement, _ in self._kinds.flow(scope).statements:
            if isinstance(statement, ast.Assign) and statement.value is call:
                return self.find(frozenset(_bound(statement)), scope, statement)
        return None

    def _follow(self, names: set[str], scope: Scope, after: ast.stmt | None) -> tuple[_Use | None, bool]:
        """Return the use within a function, and whether it returns what hangs on the variables."""
        flow = self._kinds.flow(scope)
        start = flow.spot(after) if after is not None else None
        inside = {id(each) for each in ast.walk(after)} if after is not None else set()
        told, returned = None, False
        for statement, spot in flow.statements:
            if id(statement) in inside or (start is not None and spot.number <= start.number):
                continue
            value = _asked(statement)
            name = _mentioned(value, names) if value is not None else None
            if value is None or name is None:
                continue
            if _compares(value, names) or self._hands_over(value, names, scope):
                return _Use("decides", name, statement, scope), returned
            if isinstance(statement, ast.Assign):
                names.update(_bound(statement))
            elif isinstance(statement, ast.Return):
                returned = True
            elif told is None and isinstance(value, ast.Call) and _last(value.func) in REPORTS:
                told = _Use("told", name, statement, scope)
        return told, returned

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
            used, _ = self._follow(below, called, None) if below else (None, False)
            self._depth -= 1
            if used is not None and used.way == "decides":
                return True
        return False

    def _find_method(self, call: ast.Call, scope: Scope) -> Scope | None:
        """Return the method of an object whose class stands in the files: of one that is called, ``__call__``."""
        made = self._kinds.files.find_made(call.func, scope)
        if made is not None:
            return made.functions.get("__call__")
        made = (
            self._kinds.files.find_made(call.func.value, scope)
            if isinstance(call.func, ast.Attribute)
            else None
        )
        return made.functions.get(_last(call.func)) if made is not None else None


def _asked(statement: ast.stmt) -> ast.expr | None:
    """Return the test of a statement, or its value."""
    if isinstance(statement, (ast.If, ast.While)):
        return statement.test
    return statement.value if isinstance(statement, (ast.Assign, ast.Return, ast.Expr)) else None


def _bound(statement: ast.Assign) -> Iterator[str]:
    nodes = (each for target in statement.targets for each in ast.walk(target))
    return (each.id for each in nodes if isinstance(each, ast.Name))


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


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
