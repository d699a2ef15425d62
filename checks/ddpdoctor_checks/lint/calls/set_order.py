"""COL004: collectives in the order of a set, which each process has for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import is_any_collective
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.traces import Guard, Step, Trace
from ddpdoctor.source.resolve.walking import name_last, names_in, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

SETS = frozenset({"set", "frozenset"})
KEEP = frozenset({"list", "tuple", "enumerate", "iter", "tqdm"})
"""Functions whose result has the order of what they are given."""
COMBINES = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
NUMBERS = frozenset({"range", "int", "len"})
"""Functions of whose results a set has one order in all processes: hashes of numbers are the numbers."""
DEEPEST = 4
"""Variables over which a set is followed."""


@lint_rule("set-order", reads="program")
def find_in_set_order(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield collectives that a loop over a set issues for each of its elements (``set-order``).

    Hashes of texts are randomized for each process, unless PYTHONHASHSEED is set
    (https://docs.python.org/3/reference/datamodel.html#object.__hash__), and the order of a set goes by them.

    operation: the collective. over: the set. The loop is beside it.
    """
    if not trace.has_peers or "PYTHONHASHSEED" in trace.start.script.text:
        return
    known: set[ast.AST] = set()
    for step in trace.steps:
        if step.call is None or step.call in known or not is_any_collective(step.call, step.scope, files):
            continue
        for guard in step.guards:
            head = guard.test
            if guard.kind != "for" or not isinstance(head, ast.expr) or not _goes_by(guard, step):
                continue
            if _is_set(head, guard.scope, files, 0):
                known.add(step.call)
                beside = (RelatedPlace("noticed", guard.scope.place(head)),)
                details = {"operation": name_last(step.call.func), "over": ast.unparse(head)}
                yield SourceFact(
                    "set-order", step.scope.place(step.node), beside, details=details, certain=False
                )
                break


def _goes_by(guard: Guard, step: Step) -> bool:
    """Whether what a collective is given, or the call through which a run comes there, is of the loop's element."""
    scope = guard.scope
    call = next((each.call for each in step.frames if each.scope is scope), step.node)
    if call is step.node and step.scope is not scope:
        return False
    heads = (
        each for each in own_nodes(scope.node) if isinstance(each, (ast.For, ast.AsyncFor, ast.comprehension))
    )
    names = {name for each in heads if each.iter is guard.test for name in names_in(each.target)}
    for _ in range(DEEPEST):
        names |= {
            name
            for name, values in scope.bound.items()
            if any(each is not UNKNOWN and names.intersection(names_in(each)) for each in values)
        }
    return not names.isdisjoint(names_in(call))


def _is_set(node: ast.expr, scope: Scope, files: Files, depth: int) -> bool:
    """Whether a value is a set, or has the order of one, whose elements may be texts or objects."""
    if depth > DEEPEST or node is UNKNOWN:
        return False
    if isinstance(node, ast.Set):
        return not all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in node.elts)
    if isinstance(node, ast.SetComp):
        return not _is_number(node.elt)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)) and any(
            _is_set(each, scope, files, depth + 1) for each in (node.left, node.right)
        )
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return node.func.attr in COMBINES and _is_set(node.func.value, scope, files, depth + 1)
        name = files.dotted(node.func, scope) or ""
        if name in SETS and node.args:
            return not _is_number(node.args[0])
        return bool(node.args) and name in KEEP and _is_set(node.args[0], scope, files, depth + 1)
    home, values = scope, list[ast.expr]()
    if isinstance(node, ast.Name):
        home, values = scope.lookup(node.id) or (scope, [])
    elif isinstance(node, ast.Attribute):
        owner = files.find_made(node.value, scope)
        values = owner.attributes.get(node.attr, []) if owner is not None else []
        home = owner.makers.get(values[0], owner) if owner is not None and values else scope
    return len(values) == 1 and _is_set(values[0], home, files, depth + 1)


def _is_number(node: ast.expr) -> bool:
    """Whether a value is a number, or is made of numbers."""
    if isinstance(node, ast.Call):
        return name_last(node.func) in NUMBERS
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in node.elts)
    return "rank" in ast.unparse(node).lower()


@check("COL004", family="source", needs=NEEDS, id="lint.set_order", commands=LINT)
def tell_set_order(evidence: Evidence) -> Iterable[Finding]:
    """Each process issues collectives in an order of its own."""
    for fact in facts_of(evidence, "set-order"):
        operation, over = fact.details["operation"], fact.details["over"]
        yield tell_fact(
            fact,
            f"{operation} at {name_line(fact.place)} is called for each element of {over}, a set: its order differs "
            "across ranks, so values of different elements are mixed.",
            Fix("sort what is iterated over", code=f"for name in sorted({over}):\n    {fact.place.text}"),
            why="the order of a set goes by hashes, and Python randomizes those of strings in each process",
            severity="warning",
        )
