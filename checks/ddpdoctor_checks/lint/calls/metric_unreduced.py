"""NUM005: a result of one rank's part of the data stands for all."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import DIST
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.walking import (
    find_argument,
    find_calls,
    find_keyword,
    name_last,
    names_in,
    own_nodes,
)
from ddpdoctor.source.sameness.losses import JOINING, ORDERS
from ddpdoctor.source.training.measures import MEASURED, MeasureReader
from ddpdoctor.source.training.passes import find_mentioned, find_passes, joins_results
from ddpdoctor.source.training.train_loops import distributed_modules, reach
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

REPORTS = frozenset({"print", "info", "log", "add_scalar", "add_scalars", "warning", "write", "set_postfix"})
PLATEAUS = frozenset({"torch.optim.lr_scheduler.ReduceLROnPlateau"})
"""Schedulers that are given a result and change the learning rate by it."""
DEEPEST = 3
"""Functions over which a result is followed."""


@lint_rule("metric-unreduced", reads="files")
def find_results(files: Files) -> Iterator[SourceFact]:
    """Yield results of one rank's part of the data that nothing reduces (``metric-unreduced``).

    way: ``decides`` or ``told``. name: the variable. Of the loss of a training only what it decides: each rank may
    print its own. In a program that joins other results (others: joined) also only what decides; a variable that is
    given to anything that may join results is one no more.
    """
    kinds = kinds_of(files)
    for each in find_passes(kinds):
        joins = joins_results(each.scope.module, kinds)
        if joins and _joins_inside(each.node, each.scope, kinds):
            continue  # what is added up may be a result of all ranks
        used = _UseFinder(kinds).find(each.counted, each.scope, each.node)
        if used is not None and (used.way == "decides" or not (each.trains or joins)):
            noticed = (RelatedPlace("noticed", each.scope.place(each.node)),)
            place = used.scope.place(used.node)
            details = {"way": used.way, "name": used.name} | ({"others": "joined"} if joins else {})
            yield SourceFact("metric-unreduced", place, noticed, details, certain=not joins)


@lint_rule("measure-unreduced", reads="files")
def find_measures(files: Files) -> Iterator[SourceFact]:
    """Yield what a rank decides by a number that it measured on data of its own (``measure-unreduced``).

    A comparison, a scheduler that goes by it, or a function or object of the files that compares it. name: the
    variable. Silent in programs in which anything may join results, by its name.
    """
    kinds = kinds_of(files)
    reader, ranks = MeasureReader(kinds), RankReader(files)
    told: set[ast.AST] = set()
    for module in distributed_modules(kinds):
        if joins_results(module, kinds):
            continue
        for scope in module.walk():
            if isinstance(scope.node, ast.ClassDef):
                continue
            known = reader.find(scope)
            names = {name for name, own in known.items() if own == MEASURED}
            used = _UseFinder(kinds, partial(_is_measured, reader, known))
            found = used.find_first(names, scope)
            if found is not None and found.node not in told and not _is_of_one_rank(found, ranks):
                told.add(found.node)
                place = found.scope.place(found.node)
                yield SourceFact("measure-unreduced", place, details={"name": found.name}, certain=False)


@lint_rule("reduced-to-one", reads="files")
def find_reduced_to_one(files: Files) -> Iterator[SourceFact]:
    """Yield what all ranks decide by the result of a ``reduce``, which one rank alone has (``reduced-to-one``).

    The ``reduce`` is beside it. name: the variable. Silent where a test on the rank stands around either.
    """
    kinds = kinds_of(files)
    ranks = RankReader(files)
    reducing = kinds.programs.scopes_calling([f"{DIST}reduce"])
    for module in distributed_modules(kinds):
        for scope in module.walk():
            if scope not in reducing:
                continue
            reduces = {
                call for call in find_calls(scope) if files.dotted(call.func, scope) == f"{DIST}reduce"
            }
            for statement, spot in kinds.flow(scope).statements:
                call = statement.value if isinstance(statement, ast.Expr) and spot.is_on else None
                if not isinstance(call, ast.Call) or call not in reduces:
                    continue
                given = call.args[0] if call.args else find_keyword(call, "tensor")
                if not isinstance(given, ast.Name) or _is_of_one_rank(
                    _Use("", given.id, statement, scope), ranks
                ):
                    continue
                used = _UseFinder(kinds).find(frozenset({given.id}), scope, statement)
                if used is not None and used.way == "decides" and not _is_of_one_rank(used, ranks):
                    beside = (RelatedPlace("noticed", scope.place(call)),)
                    place = used.scope.place(used.node)
                    yield SourceFact("reduced-to-one", place, beside, {"name": used.name}, certain=False)


def _joins_inside(loop: ast.For, scope: Scope, kinds: Kinds) -> bool:
    """Whether a loop calls what joins results by its name, by itself or in functions that it calls."""
    return any(
        JOINING.search(kinds.files.dotted(call.func, home) or ast.unparse(call.func))
        for call, home in reach(loop.body, scope, kinds)
    )


def _is_measured(reader: MeasureReader, known: dict[str, str], node: ast.expr, scope: Scope) -> bool:
    return reader.read(node, scope, known) == MEASURED


@dataclass(frozen=True, slots=True)
class _Use:
    """What is done with a result."""

    way: str
    """decides or told."""
    name: str
    node: ast.AST
    scope: Scope


def _is_of_one_rank(use: _Use, ranks: RankReader) -> bool:
    """Whether a test on the rank stands around what decides, or is a part of it: then one rank alone decides."""
    return any(
        isinstance(each, ast.If)
        and ranks.read(each.test, use.scope) is not None
        and any(inner is use.node for inner in ast.walk(each))
        for each in own_nodes(use.scope.node)
    )


class _UseFinder:
    """Follows a result to what it decides, or else to where it is told."""

    def __init__(self, kinds: Kinds, is_own: Callable[[ast.expr, Scope], bool] | None = None) -> None:
        self._kinds = kinds
        self._depth = 0
        self._is_own = is_own

    def find_first(self, names: set[str], scope: Scope) -> _Use | None:
        """Return the first statement of a function that decides by one of some variables, or by a value of its own."""
        for statement, spot in self._kinds.flow(scope).statements:
            value = _asked(statement)
            if value is None or not spot.is_on or (isinstance(statement, ast.If) and _only_tells(statement)):
                continue
            name = find_mentioned(value, names) or ""
            calls = [each for each in ast.walk(value) if isinstance(each, ast.Call)]
            held = [
                each for call in calls for each in call.args if self._is_own and self._is_own(each, scope)
            ]
            if not name and not held:
                continue
            if name and _compares(value, names):
                return _Use("decides", name, statement, scope)
            if self._hands_over(value, names, scope, held):
                return _Use("decides", ast.unparse(held[0]) if held else name, statement, scope)
        return None

    def find(self, counted: frozenset[str], scope: Scope, after: ast.stmt) -> _Use | None:
        """Return how variables are used after a statement, also by who calls the function that returns them."""
        used, returned = self._follow(set(counted), scope, after)
        if used is not None and used.way == "decides":
            return used
        return self._find_above(scope, returned, used)

    def _find_above(self, scope: Scope, returned: set[int | None], used: _Use | None) -> _Use | None:
        """Return how callers of a function use what it returns; else a use that is known."""
        if not returned or self._depth >= DEEPEST:
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
            if isinstance(statement, ast.Return) and statement.value is call:
                return self._find_above(scope, places, None)
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
            name = find_mentioned(value, names) if value is not None else None
            if value is None or name is None:
                if isinstance(statement, ast.Assign):  # bound to something else from here on
                    names.difference_update(
                        name for target in statement.targets for name in _bind(target, {None})
                    )
                continue
            if isinstance(statement, ast.If) and _only_tells(statement):
                continue
            names -= self._list_joined(value, names, scope)
            if find_mentioned(value, names) is None:
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

    def _list_joined(self, value: ast.expr, names: set[str], scope: Scope) -> set[str]:
        """Return the variables that are given to what joins results by its name, or by what its function calls."""
        joined: set[str] = set()
        for call in ast.walk(value):
            if not isinstance(call, ast.Call):
                continue
            called = self._kinds.called(call, scope)
            inner = names_in(called.node) if called is not None else ()
            dotted = self._kinds.files.dotted(call.func, scope) or ast.unparse(call.func)
            if JOINING.search(dotted) or any(map(JOINING.search, inner)):
                joined |= {
                    each.id for given in call.args for each in ast.walk(given) if isinstance(each, ast.Name)
                }
        return joined & names

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
            if unknown and any(find_mentioned(each, names) is not None for each in given):
                return True
        return False

    def _hands_over(
        self, value: ast.expr, names: set[str], scope: Scope, held: Sequence[ast.expr] = ()
    ) -> bool:
        """Whether a variable is given to what decides by it: a function or object of the files, or a scheduler."""
        files = self._kinds.files
        for call in ast.walk(value):
            own = isinstance(call, ast.Call) and any(each in call.args for each in held)
            if not isinstance(call, ast.Call) or (find_mentioned(call, names) is None and not own):
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
                if node is not None and (find_mentioned(node, names) is not None or node in held)
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
        return files.objects.method(made, name) if made is not None else None


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
    return {place for place, each in enumerate(value.elts) if find_mentioned(each, names) is not None}


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
        and find_mentioned(each, names) is not None
        and not any(
            isinstance(side, ast.Constant) and side.value == 0 for side in (each.left, *each.comparators)
        )
        for each in ast.walk(node)
    )


@check("NUM005", family="source", needs=("sources",), id="lint.metrics", commands=LINT)
def tell_unreduced(evidence: Evidence) -> Iterable[Finding]:
    """A rank counts over the part of the data that it is given, and nothing joins the counts."""
    for fact in facts_of(evidence, "metric-unreduced"):
        way, name = fact.details["way"], fact.details["name"]
        verb = "decides" if way == "decides" else "is reported"
        yield tell_fact(
            fact,
            f"{name} {verb} at {name_line(fact.place)} but covers one rank's shard only: the loop at "
            f"{name_line(fact.related[0].place)} iterates over a DistributedSampler, and "
            + (f"{name} is not reduced." if "others" in fact.details else "nothing is reduced."),
            Fix(
                "all-reduce the sums and counts first",
                code="sums = torch.tensor([correct, count], dtype=torch.float64, device=device)\n"
                "dist.all_reduce(sums)\naccuracy = (sums[0] / sums[1]).item()",
            ),
            why="nothing that may reduce it is given it"
            if "others" in fact.details
            else "no name in the program mentions reducing, gathering or metrics",
            severity=None if way == "decides" else "info",
            role="cause" if way == "decides" else "advice",
        )
    for fact in facts_of(evidence, "reduced-to-one"):
        name, reduced = fact.details["name"], name_line(fact.related[0].place)
        yield tell_fact(
            fact,
            f"{name} decides at {name_line(fact.place)} on every rank, but dist.reduce at {reduced} leaves the "
            "result on one rank only: the others decide by an incomplete value.",
            Fix("all-reduce it", code="dist.all_reduce(value)"),
            why="no rank-dependent `if` guards either line, and nothing broadcasts the result",
        )
    known = {fact.place for fact in facts_of(evidence, "metric-unreduced")}
    for fact in facts_of(evidence, "measure-unreduced"):
        if fact.place in known:
            continue
        yield tell_fact(
            fact,
            f"{fact.details['name']} decides at {name_line(fact.place)}, but each rank measured it on its own data and "
            "nothing is reduced: the ranks decide differently.",
            Fix(
                "all-reduce the value before the decision",
                code="value = torch.tensor(value, device=device)\ndist.all_reduce(value)\n"
                "value = value.item() / dist.get_world_size()",
            ),
            why="the data depend on the rank, and no name in the program mentions reducing, gathering or metrics",
        )
