"""COL002: a collective of a group is called by one rank of the job alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import GROUP_AT, PLAIN, WORLD
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.traces import SIDES, Guard, Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

DEEPEST = 4
"""Variables that are followed to the rank."""


@lint_rule("group-call-on-one", reads="program")
def find_group_calls_on_one(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield collectives with a group that one rank of the job alone calls (``group-call-on-one``).

    Whichever ranks the group has, the others of it wait. The test is beside it: it compares the rank of the job, not
    that in a node or a group, with a number. Silent where the program calls the same operation on another way too.
    """
    if not trace.has_peers:
        return
    calls = [(step, name) for step in trace.steps if (name := _name_operation(step, files)) is not None]
    for step, name in calls:
        guard = next((each for each in step.guards if _leaves_one(each, files)), None)
        if guard is None or not _has_group(step, name, files):
            continue
        if all(_shares_side(other, guard) for other, also in calls if also == name):
            beside = RelatedPlace("condition", guard.scope.place(guard.test))
            details = {"operation": name, "test": ast.unparse(guard.test)}
            yield SourceFact("group-call-on-one", step.scope.place(step.node), (beside,), details)


def _name_operation(step: Step, files: Files) -> str | None:
    name = (files.dotted(step.call.func, step.scope) or "") if step.call is not None else ""
    for prefix in PLAIN:
        if name.removeprefix(prefix) != name and name.removeprefix(prefix) in GROUP_AT:
            return name.removeprefix(prefix)
    return None


def _has_group(step: Step, name: str, files: Files) -> bool:
    """Whether it is given a group; without one, `lint.calls` compares the sides of the test."""
    group = find_keyword(step.call, "group", GROUP_AT[name]) if step.call is not None else None
    if group is None or isinstance(group, ast.Constant):
        return False
    return files.dotted(group, step.scope) not in WORLD


def _shares_side(step: Step, guard: Guard) -> bool:
    return any(each.test is guard.test and each.positive == guard.positive for each in step.guards)


def _leaves_one(guard: Guard, files: Files) -> bool:
    """Whether one rank of the job alone comes past a test."""
    test, positive = guard.test, guard.positive
    if guard.kind not in SIDES:
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, positive = test.operand, not positive
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    if not isinstance(test.ops[0], ast.Eq if positive else ast.NotEq):
        return False
    sides = (test.left, test.comparators[0])
    return any(
        _is_number(one) and _is_rank(other, guard.scope, files, 0) for one, other in (sides, sides[::-1])
    )


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_rank(node: ast.expr, scope: Scope, files: Files, depth: int) -> bool:
    """Whether a value is the rank in the job."""
    if isinstance(node, ast.Call):
        name = files.dotted(node.func, scope)
        if name == "int" and len(node.args) == 1:
            return _is_rank(node.args[0], scope, files, depth)
        if name in ("os.environ.get", "os.getenv"):
            return bool(node.args) and _is_variable(node.args[0])
        return name == "torch.distributed.get_rank" and not node.args and not node.keywords
    if isinstance(node, ast.Subscript):
        return files.dotted(node.value, scope) == "os.environ" and _is_variable(node.slice)
    found = scope.lookup(node.id) if isinstance(node, ast.Name) and depth < DEEPEST else None
    if found is None or len(found[1]) != 1 or found[1][0] is UNKNOWN:
        return False
    return _is_rank(found[1][0], found[0], files, depth + 1)


def _is_variable(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "RANK"


@check("COL002", family="source", needs=NEEDS, id="lint.group_on_one", commands=LINT)
def tell_group_calls_on_one(evidence: Evidence) -> Iterable[Finding]:
    """One rank of the job alone issues a collective of a group."""
    for fact in facts_of(evidence, "group-call-on-one"):
        operation, test = fact.details["operation"], fact.details["test"]
        yield tell_fact(
            fact,
            f"{operation} at {name_line(fact.place)} is issued by one rank of the job only (`{test}`): the other ranks "
            "of its group never issue it, and the collective cannot complete.",
            Fix(
                "call it on all ranks of the group", code=f"if rank in ranks_of_group:\n    {fact.place.text}"
            ),
            why="the test compares the rank of the job with a number, and no other rank issues this collective",
        )
