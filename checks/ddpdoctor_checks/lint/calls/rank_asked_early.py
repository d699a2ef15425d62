"""ENV019: the rank is asked for before the process group is made, by a function that then says 0."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import OTHER_JOINS, Frame, Step, Trace
from ddpdoctor.source.resolve.walking import name_last, own_nodes
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor_checks.lint.calls.group_order import ASKS
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

TELLS = frozenset({"print", "debug", "info", "warning", "error", "log", "format", "str"})
"""Functions that do nothing with a number but tell it."""
STARTS = re.compile(r"init|dist|launch|setup|start|env|rank|accelerat", re.IGNORECASE)
"""Names of what may make the group where it was not read."""


@lint_rule("rank-asked-early", reads="program")
def find_asked_early(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield calls of functions that say 0, or 1, where there is no group yet (``rank-asked-early``).

    These ask ``is_initialized`` first; the group is made later in the function that calls them, which uses the number
    and does not ask again. function: what is called; name: the variable. Where the group is made is beside it.
    """
    if not trace.has_peers or trace.setup:
        return
    ways = ways_of(files, trace)
    for number, step in enumerate(trace.steps):
        if (
            step.name in JOINS
            or step.name in OTHER_JOINS
            or (ways.is_foreign(step) and STARTS.search(ast.unparse(step.node)))
        ):
            return
        if step.name in ASKS and step.frames and _asks_whether(step):
            asked = step.frames[-1]
            join = _find_join(trace.steps[number:], asked.scope, step)
            names = _list_assigned(asked)
            if join is None or not _returns_constants(asked.callee):
                continue
            used = _find_use(names, asked, join[1])
            if used is not None:
                beside = (RelatedPlace("noticed", join[0].scope.place(join[0].node)),)
                details = {"function": name_last(asked.call.func), "name": used}
                yield SourceFact(
                    "rank-asked-early", asked.scope.place(asked.call), beside, details, certain=False
                )
                return


def _asks_whether(step: Step) -> bool:
    """Whether the function itself asks if there is a group."""
    return any("initialized" in ast.unparse(each.test) for each in step.guards if each.scope is step.scope)


def _find_join(steps: list[Step], home: Scope, asked: Step) -> tuple[Step, int] | None:
    """Return what makes the group later, and the line of a function from which it does."""
    around = {each for each in asked.guards if each.scope is home}
    for step in steps:
        if step.name in JOINS:
            node = step.node if step.scope is home else None
            node = next((each.call for each in step.frames if each.scope is home), node)
            if node is None or node is asked.frames[-1].call or not around <= set(step.guards):
                return None  # what asks may make the group itself, where there is none yet
            return step, node.lineno
    return None


def _list_assigned(asked: Frame) -> set[str]:
    """Return the variables that a call is bound to, where they are bound once."""
    names = {
        part.id
        for each in own_nodes(asked.scope.node)
        if isinstance(each, ast.Assign) and each.value is asked.call
        for target in each.targets
        for part in ast.walk(target)
        if isinstance(part, ast.Name)
    }
    return {each for each in names if len(asked.scope.bound.get(each, ())) == 1}


def _returns_constants(function: Scope) -> bool:
    """Whether a function may return numbers that are spelled out."""
    returned = (each.value for each in own_nodes(function.node) if isinstance(each, ast.Return))
    return any(_may_be_constant(each, function) for each in returned if each is not None)


def _may_be_constant(value: ast.expr, function: Scope) -> bool:
    if isinstance(value, ast.Tuple):
        return all(_may_be_constant(each, function) for each in value.elts)
    if isinstance(value, ast.IfExp):
        return any(isinstance(each, ast.Constant) for each in (value.body, value.orelse))
    if isinstance(value, ast.Name):
        return any(isinstance(each, ast.Constant) for each in function.bound.get(value.id, ()))
    return isinstance(value, ast.Constant)


def _find_use(names: set[str], asked: Frame, made: int) -> str | None:
    """Return a variable that a test asks, or a call gets, once the group is made."""
    for node in own_nodes(asked.scope.node):
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            parts: list[ast.expr] = [node.test]
        elif isinstance(node, ast.Call) and name_last(node.func) not in TELLS:
            parts = [*node.args, *(each.value for each in node.keywords)]
        else:
            continue
        for part in parts:
            for each in ast.walk(part):
                if isinstance(each, ast.Name) and each.id in names and each.lineno > made:
                    return each.id
    return None


@check("ENV019", family="source", needs=NEEDS, id="lint.rank_asked", commands=LINT)
def tell_asked_early(evidence: Evidence) -> Iterable[Finding]:
    """The rank is asked for before there is a process group."""
    for fact in facts_of(evidence, "rank-asked-early"):
        function, name = fact.details["function"], fact.details["name"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} runs before the process group is created at "
            f"{name_line(fact.related[0].place)}: {name} is that of a single process on every rank.",
            Fix("call it after the group is created", code=fact.place.text),
            why=f"{function} returns a constant while no group is initialized, and {name} is used later",
            severity="warning",
        )
