"""Values of one rank alone: the loss of its own batch, its own random numbers; and the tests that they decide."""

from __future__ import annotations

import ast
import builtins
import operator
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.rank_tests import Difference
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_argument, find_calls, name_last, own_nodes

DEEPEST = 4
"""Variables over which an output is followed against the order of the lines."""
NUMBERS = frozenset({"torch.isnan", "torch.isinf", "torch.isfinite", "math.isnan", "math.isinf", "math.isfinite",
                     "numpy.isnan", "numpy.isinf", "numpy.isfinite", "torch.any", "torch.all", "bool",
                     "any"})  # fmt: skip
METHODS = frozenset({"isnan", "isinf", "isfinite", "any", "all", "item"})
"""Questions about a number, as functions and as methods."""
RANDOM = frozenset({"random.random", "random.randint", "random.uniform", "random.randrange", "random.choice",
                    "numpy.random.rand", "numpy.random.random", "numpy.random.uniform", "numpy.random.randint",
                    "numpy.random.random_sample"})  # fmt: skip
"""Draws from generators that start differently in each process. Those of torch start alike."""
JOINING = re.compile("reduce(?!_?lr)|gather|metric|sync|average_|accelerat|broadcast", re.IGNORECASE)
"""Parts of names of what makes one result of those of all ranks; ReduceLROnPlateau does not."""
LOSSES = re.compile("loss|crit|objective|entropy", re.IGNORECASE)
"""Names of what computes a loss."""
WRAPPED = ("wrapped", "prepared model", "sharded")
"""Kinds of models whose ``backward`` is a collective."""
SEEDS = re.compile(r"seed", re.IGNORECASE)
NESTED = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""What is not run where it stands."""
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class LossReader:
    """Knows which values of a function hang on the output of a wrapped model, and which tests on those."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[tuple[Scope, bool], frozenset[str]] = {}
        self._forwards: dict[Scope, frozenset[ast.Call]] = {}
        self._given: dict[Scope, frozenset[ast.Call]] = {}
        """Calls of models in functions of which it is asked what they give back, whether they train or not."""
        self._seeded: dict[Scope, bool] = {}
        self._open: set[ast.expr] = set()
        """Names and answers that are being followed."""

    def find(self, scope: Scope, *, own: bool = False) -> frozenset[str]:
        """Return the variables of a function that hang on the output of a wrapped model.

        The model is wrapped in the same function, or comes as an argument or an attribute that always is; or the output
        itself comes as an argument.

        Args:
            scope: the function.
            own: only those that are surely of this rank alone: a function that was not given may reduce.
        """
        key = scope, own
        if key not in self._known:
            self._known[key] = frozenset()  # where it is asked again while it is followed
            if self._trains(scope):
                self._known[key] = frozenset(self._find(scope, own))
        return self._known[key]

    def is_output(self, node: ast.expr, scope: Scope, *, own: bool = False) -> bool:
        """Whether a value hangs on the output of a wrapped model: its ``backward`` is a collective."""
        return self._trains(scope) and self._depends(node, scope, self.find(scope, own=own), own)

    def _trains(self, scope: Scope) -> bool:
        """Whether a program goes through a ``backward`` anywhere: without one no output is followed."""
        return kinds_of(self._files).programs.mentions(scope.module, ".backward")

    def _find(self, scope: Scope, own: bool) -> set[str]:
        forwards = self._find_forwards(scope)
        reached = {each for each in scope.parameters if self._is_given(each, scope, own)}
        taken, added = (_list_taken(scope), _list_added(scope)) if forwards or reached else ({}, {})
        for _ in range(DEEPEST if forwards or reached else 0):
            for name, values in scope.bound.items():
                plain = [*(each for each in values if each is not UNKNOWN), *taken.get(name, ())]
                if len(values) > len(plain) + len(added.get(name, ())):
                    continue  # also bound to what is no value of the file
                if self._all_depend(name, plain, added.get(name, ()), scope, reached, own):
                    reached.add(name)
        return reached

    def _all_depend(
        self,
        name: str,
        values: Sequence[ast.expr],
        added: Iterable[ast.expr],
        scope: Scope,
        reached: Collection[str],
        own: bool,
    ) -> bool:
        """Whether all that a variable is bound to hangs on an output: ``loss = 0`` and ``loss += …`` as well.

        Args:
            name: of the variable: ``loss = loss / 4`` hangs on what it was before.
            values: what is assigned to it.
            added: what is added to it.
            scope: the function.
            reached: variables that hang on one.
            own: as for `find`.
        """
        sums = [each for each in added if self._depends(each, scope, reached, own)]
        again = [
            each
            for each in values
            if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(each))
        ]
        whole = [
            self._depends(each, scope, {*reached, name} if each in again else reached, own) for each in values
        ]
        grows = bool(sums) or any(self._depends(each, scope, reached, own) for each in again)
        starts = [grows and isinstance(each, ast.Constant) for each in values]
        first = [each for each in values if each not in again and self._depends(each, scope, reached, own)]
        return (grows or bool(first)) and all(map(operator.or_, whole, starts))

    def _find_forwards(self, scope: Scope) -> frozenset[ast.Call]:
        """Return the calls of a wrapped model, or of losses given one, in a function that calls a ``backward``."""
        if scope not in self._forwards:
            calls = list(find_calls(scope))
            trains = any(
                isinstance(each.func, ast.Attribute) and each.func.attr == "backward" for each in calls
            )
            self._forwards[scope] = frozenset()  # where it is asked again while it is found
            self._forwards[scope] = frozenset(
                each
                for each in calls
                if trains and (self._runs_model(each, scope) or self._gives_output(each, scope))
            )
        return self._forwards[scope]

    def _gives_output(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call runs a function of the files that gives back what a wrapped model or its loss gave it."""
        function = kinds_of(self._files).called(call, scope)
        if function is None or function in self._given or not isinstance(function.node, ast.FunctionDef):
            return False
        calls = list(find_calls(function))
        forwards = [each for each in calls if self._runs_model(each, function)]
        if not forwards or any(JOINING.search(name_last(each.func)) for each in calls):
            return False
        given = [each.value for each in own_nodes(function.node) if isinstance(each, ast.Return)]
        made: set[str] = set()
        self._given[function] = frozenset(forwards)
        try:
            for _ in range(DEEPEST):
                for name, values in (*function.bound.items(), *_list_taken(function).items()):
                    if any(self._depends(each, function, made, own=True) for each in values):
                        made.add(name)
            return bool(given) and all(
                each is not None and self._depends(each, function, made, own=True) for each in given
            )
        finally:
            del self._given[function]

    def _runs_model(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call is that of a wrapped model, or ``training_losses(model, x)`` of one."""
        if self._may_be_wrapped(call.func, scope):
            return True
        return bool(LOSSES.search(name_last(call.func))) and any(
            self._may_be_wrapped(each, scope)
            for each in call.args
            if isinstance(each, (ast.Name, ast.Attribute))
        )

    def _may_be_wrapped(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether a value is a wrapped model, or one that a test wraps: in the runs that have several ranks.

        Of a function that is called more than once each caller has to give it such a one: some give the plain model,
        on one rank.
        """
        kinds = kinds_of(self._files)
        found = [each for each in kinds.find(node, scope) if each.kind != "none"]
        if all(
            each.kind in WRAPPED or each.made in kinds.sharded_in_place or _is_prepared(each)
            for each in found
        ):
            return bool(found)
        flow = kinds.flow(scope)
        spot = flow.spot(node)
        held = flow.holding(node.id, spot) if isinstance(node, ast.Name) and spot is not None else None
        if held is None or depth >= DEEPEST or not isinstance(node, ast.Name):
            return False
        if all(each.kind == "parameter" for each in held):
            given = [(find_argument(call, scope, node.id), home) for call, home in kinds.callers(scope)]
            return all(
                each is not None and self._may_be_wrapped(each, home, depth + 1) for each, home in given
            )
        values = [each.value for each in held if each.kind == "assign" and each.index is None]
        return len(values) == len(held) and any(
            value is not None and kinds.all_of(value, scope, *WRAPPED) for value in values
        )

    def _is_given(self, parameter: str, function: Scope, own: bool) -> bool:
        """Whether each call of a function gives it a value that hangs on such an output."""
        callers = kinds_of(self._files).callers(function)
        given = [(find_argument(call, function, parameter), home) for call, home in callers]
        return bool(given) and all(
            node is not None and self.is_output(node, home, own=own) for node, home in given
        )

    def _depends(self, value: ast.expr, scope: Scope, outputs: Collection[str], own: bool) -> bool:
        """Whether a value hangs on the output of a wrapped model, by calls and arithmetic."""
        if value is UNKNOWN:
            return False
        if isinstance(value, ast.Name):
            return value.id in outputs or self._holds_output(value, scope, outputs, own)
        if isinstance(value, ast.BinOp):
            return any(self._depends(each, scope, outputs, own) for each in (value.left, value.right))
        if isinstance(value, ast.UnaryOp):
            return self._depends(value.operand, scope, outputs, own)
        if isinstance(value, (ast.Attribute, ast.Subscript)):
            return self._depends(value.value, scope, outputs, own)
        if isinstance(value, (ast.GeneratorExp, ast.ListComp, ast.DictComp)):
            parts = {
                part.id
                for each in value.generators
                if self._depends(each.iter, scope, outputs, own)
                for part in ast.walk(each.target)
                if isinstance(part, ast.Name)
            }
            made = value.value if isinstance(value, ast.DictComp) else value.elt
            return self._depends(made, scope, {*outputs, *parts}, own)
        if isinstance(value, ast.Dict):
            return any(self._depends(each, scope, outputs, own) for each in value.values)
        if not isinstance(value, ast.Call):
            return False
        if value in self._given.get(scope, ()) or value in self._find_forwards(scope):
            return True
        if isinstance(value.func, ast.Attribute) and self._depends(value.func.value, scope, outputs, own):
            return True
        return any(self._depends(each, scope, outputs, own) for each in value.args) and (
            not own or self._keeps(value, scope)
        )

    def _holds_output(self, name: ast.Name, scope: Scope, outputs: Collection[str], own: bool) -> bool:
        """Whether all that a variable may hold where it stands hangs on an output, whatever it holds elsewhere."""
        if name in self._open or len(self._open) >= DEEPEST or not self._find_forwards(scope):
            return False
        flow = kinds_of(self._files).flow(scope)
        spot = flow.spot(name)
        if spot is None:
            return False
        held = flow.holding(name.id, spot) or ()
        values = [each.value if each.kind == "assign" else None for each in held]
        self._open.add(name)
        try:
            return bool(values) and all(
                each is not None and self._depends(each, scope, outputs, own) for each in values
            )
        finally:
            self._open.discard(name)

    def _keeps(self, call: ast.Call, scope: Scope) -> bool:
        """Whether what a function gives is of the same rank as what it is given: a loss, or a function of a library."""
        name = self._files.dotted(call.func, scope) or ""
        last = name.rpartition(".")[2]
        if JOINING.search(last) or "average" in last:
            return False
        called = call.func
        if isinstance(call.func, ast.Attribute) and call.func.attr == "forward":
            called, last = call.func.value, name_last(call.func.value)
        if LOSSES.search(last) or any(
            each.kind == "loss" for each in kinds_of(self._files).find(called, scope)
        ):
            return True
        return name.split(".")[0] in KNOWN_ROOTS and not name.startswith("torch.distributed.")

    def read(self, test: ast.expr, scope: Scope) -> Difference | None:
        """Return how ranks differ in a test because of what each alone has; None where it cannot be told."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.read(test.operand, scope)
            return inner.negate() if inner else None
        if isinstance(test, ast.BoolOp):
            found = [each for each in (self.read(value, scope) for value in test.values) if each is not None]
            return found[0] if found else None
        if isinstance(test, ast.Compare):
            if len(test.ops) != 1 or not isinstance(test.ops[0], ORDERS):
                return None
            sides = [test.left, test.comparators[0]]
        elif isinstance(test, ast.Call):
            name = self._files.dotted(test.func, scope)
            if name in NUMBERS:
                sides = [test]
            elif isinstance(test.func, ast.Attribute) and test.func.attr in METHODS:
                # Not what the method of another object is given: it may reduce that.
                sides = [test.func.value]
            else:
                return self._read_answer(test, scope)
        else:
            return None
        origin = next((each for each in (self._origin(side, scope) for side in sides) if each), None)
        return Difference(origin, True, ast.dump(test), certain=False) if origin else None

    def _read_answer(self, test: ast.Call, scope: Scope) -> Difference | None:
        """Do so of a function of the files that asks what it is given, and nothing of other ranks."""
        function = kinds_of(self._files).called(test, scope)
        if function is None or not self._is_plain(test, scope):
            return None
        for answer in _list_answers(function):
            if answer in self._open or len(self._open) >= DEEPEST:
                continue
            self._open.add(answer)
            try:
                found = self.read(answer, function)
            finally:
                self._open.discard(answer)
            if found is not None:
                return found
        return None

    def _origin(self, node: ast.expr, scope: Scope) -> str | None:
        """Return ``loss`` or ``random`` for what a value hangs on; None where it may be equal on all ranks."""
        inside = list(self._list_own(node, scope))
        names = [each for each in inside if isinstance(each, ast.Name)]
        if any(self.is_output(each, scope, own=True) for each in names):
            origin = "loss"
        elif any(
            isinstance(each, ast.Call) and self._files.dotted(each.func, scope) in RANDOM for each in inside
        ) and not self._is_seeded(scope):
            origin = "random"
        else:
            return None
        reduced = self._files.find_reduced(scope)
        return None if reduced.intersection(each.id for each in names) else origin

    def _list_own(self, node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
        """Yield the parts of a value, without what a function is given that may make one value of all ranks' of it."""
        yield node
        if isinstance(node, ast.Call) and not self._is_plain(node, scope):
            if isinstance(node.func, ast.Attribute):
                yield from self._list_own(node.func.value, scope)
            return
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, NESTED):
                yield from self._list_own(child, scope)

    def _is_plain(self, call: ast.Call, scope: Scope) -> bool:
        """Whether what a function gives is of the rank that gives it: of a library, or without collectives."""
        if isinstance(call.func, ast.Name) and call.func.id in dir(builtins):
            return True
        if self._keeps(call, scope) or (
            isinstance(call.func, ast.Attribute) and self.is_output(call.func.value, scope, own=True)
        ):
            return True
        function = kinds_of(self._files).called(call, scope)
        return function is not None and not any(
            JOINING.search(name_last(each.func))
            or (self._files.dotted(each.func, function) or "").startswith("torch.distributed.")
            for each in find_calls(function)
        )

    def _is_seeded(self, scope: Scope) -> bool:
        """Whether anything in the program, or in what was not given, may seed the generators of ranks alike."""
        module = scope.module
        if module not in self._seeded:
            related = self._files.find_related(module)
            self._seeded[module] = any(SEEDS.search(line) for each in related for line in each.script.lines)
        return self._seeded[module]


def _list_answers(function: Scope) -> list[ast.expr]:
    """Return what decides a function's answer: what it returns, or the tests below which it returns another value."""
    returns = [each for each in own_nodes(function.node) if isinstance(each, ast.Return)]
    if len(returns) == 1:
        answer = returns[0].value
        held = function.bound.get(answer.id, []) if isinstance(answer, ast.Name) else []
        answer = held[0] if len(held) == 1 else answer
        return [answer] if answer is not None and answer is not UNKNOWN else []
    if len({ast.dump(each.value) if each.value is not None else "" for each in returns}) < 2:
        return []
    return [
        node.test
        for node in own_nodes(function.node)
        if isinstance(node, ast.If)
        and any(each in returns for inner in node.body for each in ast.walk(inner))
    ]


def _list_added(scope: Scope) -> dict[str, list[ast.expr]]:
    """Return what is added to variables of a function: ``loss += value``."""
    found: dict[str, list[ast.expr]] = {}
    for node in own_nodes(scope.node):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node.value)
    return found


def _is_prepared(value: Value) -> bool:
    """Whether it is what Accelerate or Fabric made of an object of which only that is known: called, it is a model."""
    return value.kind == "unknown" and bool(value.inner)


def _list_taken(scope: Scope) -> dict[str, list[ast.expr]]:
    """Return what variables of a function are a part of: ``output, extra = model(batch)``."""
    found: dict[str, list[ast.expr]] = {}
    for node in own_nodes(scope.node):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        for target in node.targets:
            for each in target.elts if isinstance(target, (ast.Tuple, ast.List)) else ():
                if isinstance(each, ast.Name):
                    found.setdefault(each.id, []).append(node.value)
    return found
