"""Whether all ranks come to a step of a program, and whether a value is the same on all of them.

Both are said only where they are known: a name that could be about ranks, a function that was not given, or a
parameter whose argument cannot be found make it unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.resolve.calls import JOINS, is_any_collective, is_wrapper
from ddpdoctor.source.resolve.flow import Binding, Flow
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.known import HARMLESS, KNOWN_ROOTS
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.rank_tests import ZERO, RankReader
from ddpdoctor.source.resolve.traces import OTHER_JOINS, Frame, Guard, Step, Trace
from ddpdoctor.source.sameness.alike import RANKLIKE, Values, without_bar
from ddpdoctor.source.sameness.losses import ORDERS

OF_RANKS = re.compile("rank|proc_id", re.IGNORECASE)
OF_SOME = re.compile("rank|proc|main|master|primary|chief|leader|first|lead|local|gpu|device", re.IGNORECASE)
"""Parts of names by which a test may ask for one rank."""
SINGLE = re.compile(r"infer|demo|predict|visuali|export|convert|plot|submission", re.IGNORECASE)
"""Names of functions and options of what people run in one process, also in a script that trains on several."""
IN_PLACE = re.compile(r"[a-z0-9_]*[a-z0-9]_")
"""Methods that change a tensor in place."""
OF_NUMBERS = frozenset(
    f"{package}.{name}"
    for package in ("torch", "math", "numpy")
    for name in ("isnan", "isinf", "isfinite", "any", "all")
)
"""Functions that ask what a number is."""
MEETS = frozenset({"backward", "wait_for_everyone", "barrier", "gather", "reduce", "step", "wait", "recv", "irecv",
                   "recv_object_list"})  # fmt: skip
"""Methods in which ranks wait for each other, or may."""
FOLLOWED = 4
"""Variables that are followed into one another."""
STARTERS = ("torch.", "hydra.", "click.")
"""Packages whose decorators run a function on each rank."""


def ways_of(files: Files, trace: Trace) -> Ways:
    """Return what answers for the steps of a program; the same for all rules."""
    if not isinstance(trace.ways, Ways):
        trace.ways = Ways(files, trace)
    return trace.ways


class Ways:
    """Answers for the steps of one program."""

    def __init__(self, files: Files, trace: Trace) -> None:
        self.files = files
        self.trace = trace
        self.ranks = RankReader(files)
        self.values = Values(files, trace, self.ranks)
        self._joining = [set(each.guards) for each in trace.steps if each.name in JOINS]
        self._differs: dict[tuple[Guard, tuple[Frame, ...]], bool] = {}

    def may_differ(self, step: Step) -> bool:
        """Whether some ranks may not come to a step, or not at the same time."""
        return any(self._guard_differs(each, step.frames) for each in step.guards)

    def may_leave_out(self, step: Step) -> bool:
        """Whether a test may keep some ranks from a step: which of two numbers is larger lets all pass now and then."""
        return any(
            self._guard_differs(each, step.frames) and not self._compares_numbers(each)
            for each in step.guards
        )

    def _compares_numbers(self, guard: Guard) -> bool:
        test = guard.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
        compares = isinstance(test, ast.Compare) and all(isinstance(each, ORDERS) for each in test.ops)
        return (
            isinstance(test, ast.expr)
            and (compares or self.files.dotted(getattr(test, "func", test), guard.scope) in OF_NUMBERS)
            and not self._asks_for_rank(test, guard.scope)
        )

    def may_be_of_some(self, step: Step) -> bool:
        """Whether a test before a step may be about ranks; others that are not known go the same way on most."""
        return any(
            self._guard_differs(each, step.frames)
            if each.kind in ("decorator", "with")
            else isinstance(each.test, ast.expr) and self._asks_for_rank(each.test, each.scope)
            for each in step.guards
            if each.kind not in ("main", "try", "except", "case") and not each.raises
        )

    def _is_decided(self, test: ast.expr, scope: Scope) -> bool:
        """Whether each run of several ranks takes the same side: ``size == 1 and rank != 0``."""
        return kinds_of(self.files).programs.side(test, scope) is not None

    def _asks_for_rank(self, test: ast.expr, scope: Scope) -> bool:
        if self._is_decided(test, scope) or self.ranks.is_about_launch(test, scope):
            return False
        return (
            self.ranks.read(test, scope) is not None
            or self.values.speaks_of_ranks(test, scope)
            or bool(OF_SOME.search(ast.unparse(without_bar(test))))
        )

    def is_of_all(self, step: Step) -> bool:
        """Whether all ranks run the method of a class by which a step is reached: it makes ranks, or they meet in it.

        Others may be called on one rank. In a script there is no such doubt.
        """
        return self.trace.owner is None or _find_entry(step) in self._meeting

    @cached_property
    def is_given_ranks(self) -> bool:
        """Whether the files make an object of the class whose methods are read, and give it what may be about ranks."""
        owner = self.trace.owner
        start = self.files.objects.method(owner, "__init__") if owner is not None else None
        calls = kinds_of(self.files).callers(start) if start is not None else []
        return any(
            OF_RANKS.search(ast.unparse(each)) is not None
            for call, _ in calls
            for each in (*call.args, *call.keywords)
        )

    @cached_property
    def _meeting(self) -> frozenset[Scope]:
        return frozenset(
            _find_entry(each)
            for each in self.trace.steps
            if each.name in JOINS or each.name in OTHER_JOINS or may_meet(each, self.files)
        )

    def is_sure(self, step: Step) -> bool:
        """Whether each run of the program comes to a step."""
        return all(map(self._is_passed, step.guards))

    def is_shared(self, step: Step) -> bool:
        """Whether all ranks come to a step or none: each test before it is on what a loop of all ranks counts.

        An option is no such test: ranks that are started by hand may have different ones.
        """
        return all(
            self._is_passed(each)
            or (
                each.kind in ("if", "else", "unless")
                and isinstance(each.test, ast.expr)
                and _is_on_loops(each.test, each.scope)
                and self.values.alike(each.test, each.scope, _frames_to(each.scope, step.frames), 0)
            )
            for each in step.guards
        )

    def _is_passed(self, guard: Guard) -> bool:
        return (
            guard.kind in ("main", "for", "with")
            or (guard.kind == "decorator" and self._is_plain_decorator(guard))
            or (isinstance(guard.test, ast.expr) and self.ranks.is_about_launch(guard.test, guard.scope))
        )

    def _is_plain_decorator(self, guard: Guard) -> bool:
        """Whether a decorator is none of the files', which may decide whether the function runs."""
        node = guard.test.func if isinstance(guard.test, ast.Call) else guard.test
        return not isinstance(node, ast.expr) or self.files.function(node, guard.scope) is None

    @staticmethod
    def is_single(step: Step) -> bool:
        """Whether a step is in a function for one process, or below a test of an option for one, by their names."""
        names = [frame.callee.name or "" for frame in step.frames]
        names += [ast.unparse(each.test) for each in step.guards if each.kind == "if"]
        return any(map(SINGLE.search, names))

    def only_first(self, step: Step) -> Guard | None:
        """Return the guard that lets rank 0 alone come to a step."""
        for guard in step.guards:
            if guard.kind in ("if", "else", "unless") and isinstance(guard.test, ast.expr):
                read = self.ranks.read(guard.test, guard.scope)
                if read is not None and read.key == ZERO and read.positive == guard.positive:
                    return guard
        return None

    def find_of_first(self, step: Step) -> tuple[str, ast.expr] | None:
        """Return a variable that a step's call reads and only rank 0 has, with what it is there.

        Every assignment to it in the function stands under a test for rank 0: the others raise NameError.
        """
        return self._find_of_first(step.call, step.scope, 0) if step.call is not None else None

    def _find_of_first(self, node: ast.expr, scope: Scope, depth: int) -> tuple[str, ast.expr] | None:
        flow = kinds_of(self.files).flow(scope)
        for each in _list_evaluated(node) if depth < FOLLOWED else ():
            known = flow.bindings.get(each.id, []) if isinstance(each, ast.Name) else []
            if not isinstance(each, ast.Name) or any(one.kind != "assign" for one in known):
                continue
            if _is_bound_elsewhere(each.id, scope):
                continue
            first = [one.value for one in known if one.value is not None and self._is_of_first(one, flow)]
            if first and len(first) == len(known):
                return each.id, first[-1]
            spot = flow.spot(each)
            for one in flow.holding(each.id, spot) or () if spot is not None else ():
                if one.value is not None and (found := self._find_of_first(one.value, scope, depth + 1)):
                    return found
        return None

    def _is_of_first(self, binding: Binding, flow: Flow) -> bool:
        """Whether rank 0 alone comes to an assignment."""
        sides = dict(binding.spot.blocks)
        for statement, spot in flow.statements:
            if isinstance(statement, ast.If) and spot.number in sides:
                read = self.ranks.read(statement.test, flow.scope)
                if read is not None and read.key == ZERO:
                    return read.positive == (sides[spot.number] == "body")
        return False

    def without_first(self, step: Step) -> bool:
        """Whether rank 0 never comes to a step."""
        for guard in step.guards:
            if guard.kind in ("if", "else", "unless") and isinstance(guard.test, ast.expr):
                read = self.ranks.read(guard.test, guard.scope)
                if read is not None and read.key == ZERO and read.positive != guard.positive:
                    return True
        return False

    @staticmethod
    def is_straight(step: Step) -> bool:
        """Whether no test at all stands before a step."""
        return all(each.kind in ("main", "for") for each in step.guards)

    def is_on_way(self, step: Step) -> bool:
        """Whether each run of several ranks comes to a step in which nothing fails before."""
        return all(
            each.kind == "try" or each.raises or self._is_passed(each) or self._is_taken(each)
            for each in step.guards
        )

    def _is_taken(self, guard: Guard) -> bool:
        test = guard.test
        if not isinstance(test, ast.expr):
            return False
        return kinds_of(self.files).programs.side(test, guard.scope) is guard.positive

    def is_on_ranks(self, step: Step) -> bool:
        """Whether each run that becomes a rank comes to a step.

        No test stands before it but those before the rank joins its group: ``if args.distributed`` before both.
        """
        tests = {each for each in step.guards if each.kind not in ("main", "for")}
        return not tests or any(tests <= each for each in self._joining)

    def is_foreign(self, step: Step) -> bool:
        """Whether a step calls what may do anything: a function or method that was not given and is none of torch's."""
        if step.known or step.call is None:
            return False
        function = step.call.func
        last = function.attr if isinstance(function, ast.Attribute) else step.name
        if last in HARMLESS or IN_PLACE.fullmatch(last) or step.name.split(".")[0] in KNOWN_ROOTS:
            return False
        if last == "backward" or kinds_of(self.files).all_of(
            function, step.scope, "model", "wrapped", "loss"
        ):
            return False  # what a model's own forward calls are steps of their own
        if self.files.find_class(function, step.scope) is not None:
            return False  # one without an __init__ of its own
        if self._is_tame_attribute(function, step.scope):
            return False
        while isinstance(function, (ast.Attribute, ast.Subscript)):
            function = function.value
        if isinstance(function, ast.Call):
            return False  # a method of what a call gave, which is a step of its own
        if not isinstance(function, ast.Name):
            return True
        found = step.scope.lookup(function.id)
        if found is None or function is step.call.func:
            return True
        return not all(self._is_tame(value, found[0]) for value in found[1])

    def _is_tame_attribute(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is an attribute of ``self`` to which such packages alone gave its value: ``self.layer(x)``."""
        while isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            node = node.value
        owner = scope.find_class()
        if owner is None or not isinstance(node, ast.Attribute) or ast.unparse(node.value) != "self":
            return False
        pairs = [(each, owner.makers.get(each, owner)) for each in owner.attributes.get(node.attr, ())]
        return bool(pairs) and all(self._is_tame(*pair) for pair in pairs)

    def _is_tame(self, value: ast.expr, scope: Scope) -> bool:
        """Whether a value was made by one of the packages that make no groups of the user's."""
        if isinstance(value, ast.Call):
            return (self.files.dotted(value.func, scope) or "").split(".")[0] in KNOWN_ROOTS
        return isinstance(value, (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.JoinedStr)) or (
            isinstance(value, ast.Constant) and value is not UNKNOWN
        )

    def tell(self, rule: str, step: Step, *, beside: Step | None = None, **details: str) -> SourceFact:
        """Return what a rule sees in a step.

        Args:
            rule: what is seen.
            step: where the line stands that has to change.
            beside: another step that belongs to it.
            details: what the words of the finding need.
        """
        related = () if beside is None else (RelatedPlace("noticed", beside.scope.place(beside.node)),)
        return SourceFact(
            rule, step.scope.place(step.node), related=related, details=details, certain=self.is_sure(step)
        )

    def is_alike(self, value: ast.expr, step: Step) -> bool:
        """Whether a value is known to be the same on all ranks."""
        return self.values.alike(value, step.scope, step.frames, 0)

    def may_differ_if_given(self, step: Step) -> bool:
        """Whether some ranks may not come to a step, where a class is given the same on all by who uses it."""
        with self.values.assuming():
            return any(
                self._find_difference(each, _frames_to(each.scope, step.frames)) for each in step.guards
            )

    def is_alike_if_given(self, value: ast.expr, step: Step) -> bool:
        """Whether a value is the same on all ranks where a class is given the same on all by who uses it."""
        with self.values.assuming():
            return self.is_alike(value, step)

    def spell(self, value: ast.expr, step: Step) -> str:
        """Return a text that is equal for equal values, with variables and parameters replaced by what they are."""
        return self.values.spell(value, step.scope, step.frames, 0)

    def _guard_differs(self, guard: Guard, frames: tuple[Frame, ...]) -> bool:
        key = guard, _frames_to(guard.scope, frames)
        if key not in self._differs:
            self._differs[key] = self._find_difference(*key)
        return self._differs[key]

    def _find_difference(self, guard: Guard, frames: tuple[Frame, ...]) -> bool:
        if guard.kind in ("main", "try"):
            return False
        if guard.kind in ("except", "case"):
            return True
        if guard.kind == "for":
            return bool(OF_RANKS.search(ast.unparse(without_bar(guard.test))))
        decorator = guard.test if guard.kind == "decorator" and isinstance(guard.test, ast.expr) else None
        if decorator is not None and self.ranks.read_decorator(decorator, guard.scope) is not None:
            return True
        if guard.kind in ("with", "decorator"):
            call = guard.test.func if isinstance(guard.test, ast.Call) else guard.test
            name = self.files.dotted(call, guard.scope) if isinstance(call, ast.expr) else None
            return not (name or "").startswith(STARTERS) and bool(RANKLIKE.search(ast.unparse(guard.test)))
        test = guard.test
        if not isinstance(test, ast.expr):
            return True
        if self._is_decided(test, guard.scope):
            return False
        if self.ranks.read(test, guard.scope) is not None:
            return True
        if self.ranks.is_about_launch(test, guard.scope):
            return False
        if self.values.speaks_of_ranks(test, guard.scope):
            return True
        return not self._plain(test, guard.scope, frames, 0)

    def _plain(self, test: ast.expr, scope: Scope, frames: tuple[Frame, ...], depth: int) -> bool:
        """Whether a test is about nothing that could make ranks differ."""
        if isinstance(test, ast.BoolOp):
            return all(
                self.ranks.is_about_launch(each, scope) or self._plain(each, scope, frames, depth)
                for each in test.values
            )
        if isinstance(test, ast.UnaryOp):
            return self._plain(test.operand, scope, frames, depth)
        if isinstance(test, ast.Compare):
            if isinstance(test.ops[0], (ast.Is, ast.IsNot)) and self._asks_for_none(test, scope, frames):
                return True
            # numbers that were computed decide for each rank, but mean no rank
            return all(self._number_or_alike(each, scope, frames) for each in (test.left, *test.comparators))
        return self.values.alike(test, scope, frames, depth)

    def _asks_for_none(self, test: ast.Compare, scope: Scope, frames: tuple[Frame, ...]) -> bool:
        """Whether it is ``scaler is not None`` of what is an object on all ranks, or on none."""
        right = test.comparators[0]
        if len(test.ops) > 1 or not isinstance(right, ast.Constant) or right.value is not None:
            return False
        return self.values.is_none_alike(test.left, scope, frames)

    def _number_or_alike(self, node: ast.expr, scope: Scope, frames: tuple[Frame, ...]) -> bool:
        if RANKLIKE.search(ast.unparse(node)):
            return False
        if isinstance(node, ast.BinOp):
            return all(self._number_or_alike(each, scope, frames) for each in (node.left, node.right))
        if isinstance(node, (ast.Name, ast.Constant)):
            return not (isinstance(node, ast.Name) and self._is_parameter(node, scope)) or self.values.alike(
                node, scope, frames, 0
            )
        return self.values.alike(node, scope, frames, 0)

    @staticmethod
    def _is_parameter(node: ast.Name, scope: Scope) -> bool:
        found = scope.lookup(node.id)
        return found is not None and found[1][:1] == [UNKNOWN] and node.id not in found[0].loops


def may_meet(step: Step, files: Files) -> bool:
    """Whether ranks wait for each other in a step, or may, by the name of the method."""
    call = step.call
    if call is None:
        return False
    if isinstance(call.func, ast.Attribute) and call.func.attr in MEETS:
        return True
    return is_any_collective(call, step.scope, files) or is_wrapper(call, step.scope, files)


def _find_entry(step: Step) -> Scope:
    """Return the function in which a program begins that comes to a step."""
    return step.frames[0].scope if step.frames else step.scope


def _is_bound_elsewhere(name: str, scope: Scope) -> bool:
    """Whether something other than its own statements may bind a variable of a module: ``global``, ``import *``."""
    if not isinstance(scope.node, ast.Module):
        return False
    return UNKNOWN in scope.bound.get(name, ()) or any(each.endswith(".*") for each in scope.imports.values())


def _list_evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression that are evaluated whatever its tests say, with the function's own variables."""
    yield node
    if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        yield from _list_evaluated(node.test if isinstance(node, ast.IfExp) else node.values[0])
        return
    for child in ast.iter_child_nodes(node):
        yield from _list_evaluated(child)


def _is_on_loops(test: ast.expr, scope: Scope) -> bool:
    """Whether all variables of a test are those of loops of the same function."""
    called = {
        id(name) for each in ast.walk(test) if isinstance(each, ast.Call) for name in ast.walk(each.func)
    }
    names = [each.id for each in ast.walk(test) if isinstance(each, ast.Name) and id(each) not in called]
    return bool(names) and all(name in scope.loops for name in names)


def _frames_to(scope: Scope, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the calls through which a program comes to a function, of those through which it comes to a step."""
    places = [place for place, frame in enumerate(frames, start=1) if frame.callee is scope]
    return frames[: places[-1]] if places else frames if scope.name is not None else ()
