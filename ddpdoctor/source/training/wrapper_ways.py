"""Wrappers that only some ways through a program bring to a line: those of a setting, of a caller, of other ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator

from ddpdoctor.source.resolve.flow import Binding, Flow, Spot, name_of
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_argument, own_nodes
from ddpdoctor.source.training.wraps import is_certain

ASKS = re.compile(
    r"isinstance|hasattr|module|dist|ddp|world|rank|gpu|cuda|devices?\b|parallel|multi|wrap|main|master",
    re.IGNORECASE,
)
"""Tests that may ask whether the model is wrapped."""
OF_LAUNCH = re.compile(rf"{ASKS.pattern}|fsdp|shard|deepspeed|process", re.IGNORECASE)
"""Tests that ask how a program is started, and not what it does."""
LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
MOST_CALLERS = 8
DEEPEST = 3
"""Methods outwards from a line, among whose callers the one that wraps is looked for."""


def find_some_way(
    node: ast.expr, scope: Scope, kinds: Kinds, is_meant: Callable[[Value], bool]
) -> Value | None:
    """Return a wrapper that a variable of a function holds at a line in some runs of several ranks.

    Others may give it a plain model. Nothing is returned where a test between the wrap and the line may ask which it
    is, where one of them is left before, or where the tests around the line are those around the wrap.

    Args:
        node: the variable.
        scope: the function in which it stands.
        kinds: of all files.
        is_meant: says which wrappers are looked for.
    """
    flow, name = kinds.flow(scope), name_of(node)
    spot = flow.spot(node)
    if name is None or spot is None or not spot.is_on:
        return None
    home, end = scope, spot
    bindings = flow.holding(name, spot)
    if bindings is None and name.startswith("self."):
        home, bindings = _find_keeper(name, scope, kinds) or (scope, None)
        end = kinds.flow(home).end()
    elif isinstance(node, ast.Name) and flow.hidden(node) is not None:
        return None
    for each in bindings or ():
        if each.kind == "parameter":
            found = _find_given(node, scope, kinds, is_meant) if home is scope else None
        else:
            values = [one for one in kinds.of_binding(name, each, home) if one.kind != "none"]
            found = values[0] if values and all(map(is_meant, values)) else None
        if found is None:
            continue
        tests = [
            statement.test if isinstance(statement, ast.If) else None
            for statement, at in flow.statements
            if (at.number, "loop") not in spot.blocks and at.number in dict(spot.blocks)
            if home is not scope or not _is_around(at.number, spot, bindings or ())
        ]
        if _is_open(each, bindings or (), end, name, kinds.flow(home), tests):
            return found
    return None


def _is_around(number: int, spot: Spot, bindings: Iterable[Binding]) -> bool:
    """Whether a test around a line is around all assignments that may hold there as well."""
    block = number, dict(spot.blocks)[number]
    return all(block in each.spot.blocks for each in bindings)


def _find_keeper(name: str, scope: Scope, kinds: Kinds) -> tuple[Scope, tuple[Binding, ...]] | None:
    """Return the one method of a class that assigns an attribute, and what its end leaves in that."""
    owner = scope.find_class()
    if owner is None:
        return None
    methods = [each for one in kinds.files.objects.bases(owner) for each in one.functions.values()]
    keepers = [
        (each, held) for each in methods if (held := kinds.flow(each).holding(name, kinds.flow(each).end()))
    ]
    return keepers[0] if len(keepers) == 1 else None


def may_come_before(scope: Scope, wrapper: Value, kinds: Kinds, depth: int = 0) -> bool:
    """Whether a method may run before the wrap in another one: what makes the object calls it first."""
    home = wrapper.scope
    own = kinds.flow(home).spot(wrapper.call) if home is not None else None
    if home is None or own is None or depth > DEEPEST:
        return False
    above = [(each, kinds.flow(each).spot(call)) for call, each in kinds.callers(home)]
    places = [(home, own), *((each, spot) for each, spot in above if spot is not None)]
    for call, caller in kinds.callers(scope):
        spot = kinds.flow(caller).spot(call)
        if any(caller is each and spot is not None and spot.number <= at.number for each, at in places) or (
            caller is not scope and caller is not home and may_come_before(caller, wrapper, kinds, depth + 1)
        ):
            return True
    return False


def _find_given(
    node: ast.expr, scope: Scope, kinds: Kinds, is_meant: Callable[[Value], bool]
) -> Value | None:
    """Return a wrapper that some caller gives for a parameter, where the line runs in each call."""
    calls = kinds.callers(scope)
    if not isinstance(node, ast.Name) or len(calls) > MOST_CALLERS or not is_certain(node, scope, kinds):
        return None
    for call, home in calls:
        given = find_argument(call, scope, node.id)
        spot = kinds.flow(home).spot(call)
        values = kinds.find(given, home) if given is not None and spot is not None and spot.is_on else ()
        if values and all(map(is_meant, values)):
            return values[0]
    return None


def _is_open(
    own: Binding,
    others: tuple[Binding, ...],
    spot: Spot,
    name: str,
    flow: Flow,
    within: list[ast.expr | None],
) -> bool:
    """Whether what one assignment gives can come to a place past the others, whatever the tests in between ask.

    Args:
        own: the assignment.
        others: all that may hold at the place.
        spot: the place.
        name: the variable.
        flow: of the function of these.
        within: the tests around the line that uses it; None for what is no ``if``.
    """
    around = [block for block in own.spot.blocks if block[1] != "loop" and block not in spot.blocks]
    outside = [number for number, _ in around]
    tests = {at.number: each for each, at in flow.statements if isinstance(each, ast.If)}
    if any(
        n not in tests or _leaves(tests[n].body if side == "body" else tests[n].orelse) for n, side in around
    ):
        return False
    if within and not all(OF_LAUNCH.search(ast.unparse(tests[number].test)) for number in outside):
        return False  # a setting that decides on both may be one of what is done
    words = {
        word
        for number in (*outside, *_tests_around(others, own, spot))
        for word in (_words(tests[number].test) if number in tests else ())
    }
    if any(each is None or words & {*_words(each)} for each in within):
        return False
    for each in others:
        if each is own or each.spot.number < own.spot.number or each.spot.excludes(own.spot):
            continue
        numbers = [n for n, side in each.spot.blocks if side != "loop" and (n, side) not in spot.blocks]
        if not numbers or any(n not in tests or _asks(tests[n].test, name) for n in numbers):
            return False
    inside = dict(spot.blocks)
    between = (
        each
        for number, each in tests.items()
        if own.spot.number < number < spot.number and number not in inside
    )
    return not any(_leaves((*each.body, *each.orelse)) and _asks(each.test, name) for each in between)


def _tests_around(others: tuple[Binding, ...], own: Binding, spot: Spot) -> Iterator[int]:
    """Yield the tests around later assignments, by which they are left out."""
    for each in others:
        if each is not own and each.spot.number > own.spot.number:
            yield from (n for n, side in each.spot.blocks if side != "loop" and (n, side) not in spot.blocks)


def _asks(test: ast.expr, name: str) -> bool:
    """Whether a test may ask what a variable holds; which rank it is does not tell."""
    text = ast.unparse(test)
    if re.fullmatch(r"(\w+\.)*(is_)?(local_|global_)?(main|master)(_process)?(\(\))?", text):
        return False
    return ASKS.search(text) is not None or re.search(rf"\b{re.escape(name)}\b", text) is not None


def _words(test: ast.expr) -> Iterator[str]:
    """Yield the names in a test, without those of objects that hold all settings."""
    for each in ast.walk(test):
        if isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Name) and not any(
            isinstance(one, ast.Attribute) and one.value is each for one in ast.walk(test)
        ):
            yield each.id


def _leaves(body: Iterable[ast.stmt]) -> bool:
    return any(
        isinstance(each, LEAVES) or (isinstance(each, ast.Call) and ast.unparse(each.func).endswith("exit"))
        for one in body
        for each in (one, *own_nodes(one))
    )
