"""Which binding of a name holds at a line: assignments in the order of the lines, with branches and loops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.tree_nodes import CLOSED, list_children
from ddpdoctor.source.resolve.walking import TRIES, is_main_guard, own_nodes

Side = Callable[[ast.expr], "bool | None"]
"""Says which side of a test a distributed run takes; None where both may be."""
OFF = "off"
LOOP = "loop"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a statement stands in its function."""

    number: int
    """Number of the statement, counted along the lines; parameters are bound at 0."""
    blocks: tuple[tuple[int, str], ...] = ()
    """Tests, handlers and loops around it, the outermost first: number of the statement, and which side."""

    @property
    def is_on(self) -> bool:
        """Whether a distributed run may come there."""
        return all(side != OFF for _, side in self.blocks)

    @property
    def loops(self) -> tuple[int, ...]:
        """Numbers of the loops around it, the outermost first."""
        return tuple(number for number, side in self.blocks if side == LOOP)

    def surely_before(self, other: Spot) -> bool:
        """Whether it has run wherever the other runs."""
        own = len(self.blocks)
        return self.number < other.number and self.blocks == other.blocks[:own]

    def excludes(self, other: Spot) -> bool:
        """Whether they are on different sides of one test, inside of the same loops."""
        sides = dict(other.blocks)
        return any(sides.get(number, side) != side for number, side in self.blocks)


@dataclass(frozen=True, slots=True)
class Binding:
    """One assignment to a name."""

    spot: Spot
    value: ast.expr | None
    """None for what is no expression, such as deleted names."""
    index: int | None = None
    """Which element of the value, where a tuple is taken apart."""
    kind: str = "assign"
    """assign, parameter, added (``x += value``), loop (``value`` is what is gone through), with, or other."""


class Flow:
    """The statements of one scope in order, and what they bind.

    Bodies of ``with`` and ``try``, of the script's main guard, and the sides of tests that a distributed run always
    takes count as straight code; the sides that it never takes as if they were not there.
    """

    def __init__(self, scope: Scope, side: Side) -> None:
        self.scope = scope
        self.bindings: dict[str, list[Binding]] = {}
        """Assignments by name, and by ``self.name`` for attributes; in order."""
        self.statements: list[tuple[ast.stmt, Spot]] = []
        self.comprehensions: list[tuple[ast.For, Spot]] = []
        """Comprehensions over one iterable, as the loops that they are: ``sum(step(x) for x in loader)``."""
        self._spots: dict[int, Spot] = {}
        self._hidden: dict[int, Binding] = {}
        self._tests: dict[str, list[tuple[Spot, str]]] = {}
        """Tests whether a name is None: where each stands, and the side on which it is not."""
        self._side = side
        self._number = 0
        node = scope.node
        if isinstance(node, FUNCTIONS):
            named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for each in (*named, *(one for one in (node.args.vararg, node.args.kwarg) if one)):
                kind = "parameter" if each in named else "other"
                self._bind(each.arg, Binding(Spot(0), None, kind=kind))
        self._block(node.body, ())
        self._dropped = {id(each.value) for each, _ in self.statements if isinstance(each, ast.Expr)}

    def drops(self, node: ast.expr) -> bool:
        """Whether an expression is a statement by itself, so that nothing holds its value."""
        return id(node) in self._dropped

    def spot(self, node: ast.AST) -> Spot | None:
        """Return where a node stands; None for what is no part of the scope itself."""
        return self._spots.get(id(node))

    def holding(self, name: str, spot: Spot) -> tuple[Binding, ...] | None:
        """Return the bindings of which one holds at a place; None where nothing binds the name there."""
        known = self.bindings.get(name)
        if known is None:
            return None
        found: list[Binding] = []
        later: list[Binding] = []
        covered: set[tuple[tuple[int, str], ...]] = set()
        for each in reversed(known):
            if each.spot.number >= spot.number:
                again = spot.loops and set(spot.loops) & set(each.spot.loops) and each.spot.is_on
                if again and not each.spot.excludes(spot):
                    later.append(each)  # it holds from the second round on
                continue
            if each.spot.excludes(spot) or (not each.spot.is_on and spot.is_on):
                continue
            found.append(each)
            if each.kind != "added" and _covers(each.spot.blocks, spot.blocks, covered):
                break
        # ... unless each round binds it anew before it comes to the place
        anew = {number for each in covered if each == spot.blocks[: len(each)] for number, _ in each}
        later = [each for each in later if [n for n in each.spot.loops if n in spot.loops][-1] not in anew]
        return (*later, *found) or None

    def narrow(self, name: str, binding: Binding, spot: Spot) -> tuple[bool, bool]:
        """Return whether what a binding gave may be None at a place that it reaches, and whether anything else.

        Tests of the name decide: ``if model is not None: model = wrap(model)`` lets only None pass by.
        """
        may_be_none = may_be_else = True
        for test, side in self._tests.get(name, ()):
            if not binding.spot.number <= test.number < spot.number or _is_in(binding.spot, test):
                continue
            taken = dict(spot.blocks).get(test.number)
            if taken is not None:
                may_be_none &= taken != side
                may_be_else &= taken == side or taken not in ("body", "else")
            elif test.blocks == spot.blocks[: len(test.blocks)]:
                within = (*test.blocks, (test.number, side))
                may_be_else &= not any(each.spot.blocks == within for each in self.bindings[name])
        return may_be_none, may_be_else

    def sets_apart(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether two nodes are on two sides of a test of a setting: a run goes to one of them, and never to the other.

        Where the test changes from step to step, one side may collect the gradients that the other reduces.
        """
        own, its = self.spot(one), self.spot(other)
        if own is None or its is None or not own.excludes(its):
            return False
        sides = dict(its.blocks)
        apart = {number for number, side in own.blocks if sides.get(number, side) != side}
        tests = [each for each, spot in self.statements if isinstance(each, ast.If) and spot.number in apart]
        return bool(tests) and all(map(self._is_setting, tests))

    def _is_setting(self, statement: ast.If) -> bool:
        """Whether a test asks for one flag that no loop binds: ``use_amp``, ``not args.amp``."""
        test = statement.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
        while isinstance(test, ast.Attribute):
            test = test.value
        name = name_of(test)
        return name is not None and not any(each.spot.loops for each in self.bindings.get(name, ()))

    def all_of(self, name: str) -> tuple[Binding, ...] | None:
        """Return all bindings of a name that a distributed run may make."""
        return tuple(each for each in self.bindings.get(name, ()) if each.spot.is_on) or None

    def hidden(self, node: ast.Name) -> Binding | None:
        """Return the binding of a name that is the target of a comprehension around it; None for others."""
        return self._hidden.get(id(node))

    def end(self) -> Spot:
        """Return the place after the last statement."""
        return Spot(self._number + 1)

    def _bind(self, name: str, binding: Binding) -> None:
        self.bindings.setdefault(name, []).append(binding)

    def _block(self, body: list[ast.stmt], blocks: tuple[tuple[int, str], ...]) -> None:
        for statement in body:
            self._number += 1
            spot = Spot(self._number, blocks)
            self.statements.append((statement, spot))
            self._spots[id(statement)] = spot
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                continue
            for child in list_children(statement):
                if isinstance(child, (ast.expr, ast.withitem)):
                    self._note(child, spot)
            self._targets(statement, spot)
            self._inside(statement, spot)

    def _inside(self, statement: ast.stmt, spot: Spot) -> None:
        number, blocks = spot.number, spot.blocks
        if isinstance(statement, ast.If):
            taken = True if is_main_guard(statement.test) else self._side(statement.test)
            for name, side in _tests_for_none(statement.test):
                self._tests.setdefault(name, []).append((spot, side))
            for body, own in ((statement.body, True), (statement.orelse, False)):
                side = "body" if own else "else"
                more = ((number, side if taken is None else OFF),) if taken is not own else ()
                self._block(body, blocks + more)
        elif isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            self._block(statement.body, (*blocks, (number, LOOP)))
            self._block(statement.orelse, blocks)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            self._block(statement.body, blocks)
        elif isinstance(statement, ast.Match):
            for place, case in enumerate(statement.cases):
                self._block(case.body, (*blocks, (number, f"case {place}")))
        elif isinstance(statement, TRIES):
            self._block(getattr(statement, "body", []), blocks)
            for place, handler in enumerate(getattr(statement, "handlers", [])):
                self._block(handler.body, (*blocks, (number, f"handler {place}")))
            self._block(getattr(statement, "orelse", []), blocks)
            self._block(getattr(statement, "finalbody", []), blocks)

    def _note(self, expression: ast.AST, spot: Spot) -> None:
        """Keep the place of an expression and of what is in it."""
        waiting = [expression]
        while waiting:
            node = waiting.pop()
            self._spots[id(node)] = spot
            if node.__class__ in CLOSED:
                continue
            if isinstance(node, COMPREHENSIONS):
                self._note_comprehension(node, spot)
            elif isinstance(node, ast.NamedExpr):
                self._bind(node.target.id, Binding(spot, node.value))
            waiting += reversed(list_children(node))

    def _note_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, spot: Spot
    ) -> None:
        targets = {
            name: binding
            for each in node.generators
            for name, binding in _list_targets(each.target, Binding(spot, each.iter, kind="loop"))
        }
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and each.id in targets:
                self._hidden[id(each)] = targets[each.id]
        if len(node.generators) == 1 and not isinstance(node, ast.DictComp):
            only = node.generators[0]
            body: list[ast.stmt] = [ast.copy_location(ast.Expr(node.elt), node.elt)]
            loop = ast.copy_location(ast.For(only.target, only.iter, body, []), node)
            self._spots[id(loop)] = spot
            self.comprehensions.append((loop, spot))

    def _targets(self, statement: ast.stmt, spot: Spot) -> None:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._assign(target, Binding(spot, statement.value))
        elif isinstance(statement, ast.AnnAssign):
            if statement.value is not None:
                self._assign(statement.target, Binding(spot, statement.value))
        elif isinstance(statement, ast.AugAssign):
            self._assign(statement.target, Binding(spot, statement.value, kind="added"))
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            # the target is bound anew in each round, before the body
            inside = Spot(spot.number, (*spot.blocks, (spot.number, LOOP)))
            self._assign(statement.target, Binding(inside, statement.iter, kind="loop"))
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, Binding(spot, item.context_expr, kind="with"))
        elif isinstance(statement, (ast.Global, ast.Nonlocal)):
            for name in statement.names:
                self._bind(name, Binding(Spot(0), None, kind="other"))
        # `del` binds nothing: no use comes after it before the name is bound again

    def _assign(self, target: ast.expr, binding: Binding) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            pairs = isinstance(binding.value, (ast.Tuple, ast.List)) and binding.kind == "assign"
            elements = (
                binding.value.elts if pairs and isinstance(binding.value, (ast.Tuple, ast.List)) else []
            )
            for place, each in enumerate(target.elts):
                if len(elements) == len(target.elts):
                    self._assign(each, replace(binding, value=elements[place], index=None))
                elif binding.index is None and not any(isinstance(one, ast.Starred) for one in target.elts):
                    self._assign(each, replace(binding, index=place))
                else:
                    self._assign(each, Binding(binding.spot, None, kind="other"))
        elif isinstance(target, ast.Starred):
            self._assign(target.value, Binding(binding.spot, None, kind="other"))
        else:
            name = name_of(target)
            if name is not None:
                self._bind(name, binding)


def _covers(
    blocks: tuple[tuple[int, str], ...],
    other: tuple[tuple[int, str], ...],
    covered: set[tuple[tuple[int, str], ...]],
) -> bool:
    """Whether each way to a place leads over one of the blocks that were seen so far; notes one more.

    A test both sides of which are seen counts as its surroundings.
    """
    covered.add(blocks)
    while blocks and blocks[-1][1] in ("body", "else"):
        number, side = blocks[-1]
        blocks = blocks[:-1]
        if (*blocks, (number, "else" if side == "body" else "body")) not in covered:
            break
        covered.add(blocks)
    return any(each == other[: len(each)] for each in covered)


def _is_in(spot: Spot, test: Spot) -> bool:
    return any(number == test.number for number, _ in spot.blocks)


def _tests_for_none(test: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield the names that a test compares with None, each with the side on which it is not: ``body`` or ``else``."""
    side = "body"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, side = test.operand, "else"
    if (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], (ast.Is, ast.IsNot))
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value is None
    ):
        if isinstance(test.ops[0], ast.Is):
            side = "else" if side == "body" else "body"
        test = test.left
    name = name_of(test)
    if name is not None:
        yield name, side


def name_of(node: ast.expr) -> str | None:
    """Return under which name a flow keeps an expression: ``model``, ``self.model``; None for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return None


def list_kept(method: Scope) -> set[str]:
    """Return the ``self.name`` that a method may bind; which of these its flow keeps is another question."""
    return {
        f"self.{each.attr}"
        for each in own_nodes(method.node)
        if each.__class__ is ast.Attribute
        and each.ctx.__class__ is not ast.Load
        and name_of(each) is not None
    }


def _list_targets(target: ast.expr, binding: Binding) -> Iterator[tuple[str, Binding]]:
    """Yield the names that a comprehension binds; what is taken apart twice is not followed."""
    if isinstance(target, ast.Name):
        yield target.id, binding
    elif isinstance(target, (ast.Tuple, ast.List)):
        for place, each in enumerate(target.elts):
            plain = isinstance(each, ast.Name) and binding.index is None
            inner = replace(binding, index=place) if plain else replace(binding, value=None)
            yield from _list_targets(each, inner)
    else:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node.id, replace(binding, value=None)
