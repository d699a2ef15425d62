"""NUM001 and NUM006: some ranks load a state that the others do not, and train on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, diagnosis, lint_rule
from ddpdoctor.source.resolve.calls import is_wrapper
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import SIDES, Guard, Step, Trace
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import names_in
from ddpdoctor.source.sameness.apart import Ways, ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

SENDS = re.compile(r"broadcast|scatter|all_gather|all_reduce|(?<!no_)sync(?!_?bn|hronize$)", re.IGNORECASE)
"""Names of what may give the state of one rank to the others."""
OF_NUMBERS = re.compile(
    r"_(int|integer|number|num|epoch|step|flag|scalar|bool|float|count)s?$", re.IGNORECASE
)
"""Ends of names of what sends a number alone."""
OF_STATES = re.compile(
    r"param|state|model|module|optim|\bopt\b|weight|ckpt|checkpoint|tensor|buffer|\bnet\b|\bp\b|data",
    re.IGNORECASE,
)
"""Words in what is sent by which it may be the state of a model or an optimizer."""
GIVES = frozenset({"state_dict", "parameters", "named_parameters", "buffers", "named_buffers"})
"""Methods that give a state."""
RESTORED = frozenset({"optimizer", "scheduler", "scaler", "model", "wrapped"})
"""Kinds of what a loop over the parts of a checkpoint loads."""
DEEPEST = 3
"""Variables that are followed into one another to what is sent."""


@lint_rule("restored-apart", reads="program")
def find_restored_apart(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where some ranks alone load the state of the wrapped model or of an optimizer (``restored-apart``).

    DistributedDataParallel sends the parameters and buffers of rank 0 when it is made, and never again; it sends
    nothing of an optimizer (https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design). kind: ``model``,
    where the load comes after the wrap (whose line is beside it), or ``optimizer``. Silent where anything that is sent
    later may be the state, where the ranks load on both sides of the test, and where no backward pass comes after.
    """
    if not trace.has_peers:
        return
    ways, kinds = ways_of(files, trace), kinds_of(files)
    loads = [(number, each) for number, each in enumerate(trace.steps) if _loads(each)]
    apart = [(n, step, guard) for n, step in loads if (guard := _find_guard(step, ways)) is not None]
    wraps = [
        (number, each)
        for number, each in enumerate(trace.steps)
        if each.call is not None and is_wrapper(each.call, each.scope, files)
    ]
    for number, step, guard in apart:
        later = trace.steps[number + 1 :]
        backward = any(_is_method(each, "backward") and not _shares_side(each, guard) for each in later)
        if not backward or not wraps or any(_may_send(each) for each in later):
            continue
        same = [other for _, other in loads if _name(other) == _name(step)]
        if not all(_shares_side(other, guard) for other in same):
            continue
        found = _find_kind(step, [each for before, each in wraps if before < number], kinds)
        if found is None or (found[0] == "model" and any(after > number for after, _ in wraps)):
            continue
        read = ways.ranks.read(guard.test, guard.scope) if isinstance(guard.test, ast.expr) else None
        certain = read is not None and read.certain
        certain = certain and all(
            each is guard or each.kind in ("main", "for", "with") for each in step.guards
        )
        wrap = found[1]
        related = (RelatedPlace("noticed", wrap.scope.place(wrap.node)),) if wrap is not None else ()
        details = {"kind": found[0], "test": ast.unparse(guard.test)}
        yield SourceFact("restored-apart", step.scope.place(step.node), related, details, certain=certain)


def _name(step: Step) -> str:
    """Return what a call calls, as it is written."""
    return ast.unparse(step.call.func) if step.call is not None else ""


def _is_method(step: Step, name: str) -> bool:
    return step.call is not None and isinstance(step.call.func, ast.Attribute) and step.call.func.attr == name


def _loads(step: Step) -> bool:
    return _is_method(step, "load_state_dict") and not step.known


def _find_guard(step: Step, ways: Ways) -> Guard | None:
    """Return the test on the rank that lets some ranks alone come to a step."""
    for guard in step.guards:
        if guard.kind not in SIDES or not isinstance(guard.test, ast.expr):
            continue
        if isinstance(guard.test, ast.BoolOp):
            # of `a and b` only the ranks of both sides come in; behind `if a or b: return` neither
            everyone = isinstance(guard.test.op, ast.And) is guard.positive
            if not everyone:
                continue
        read = ways.ranks.read(guard.test, guard.scope)
        if read is not None and read.origin in ("rank", "helper"):
            return guard
    return None


def _shares_side(step: Step, guard: Guard) -> bool:
    return any(each.test is guard.test and each.positive == guard.positive for each in step.guards)


def _may_send(step: Step) -> bool:
    """Whether a step may give the state that was loaded to the other ranks, by the words in what it is given."""
    call = step.call
    if call is None:
        return False
    last = call.func.attr if isinstance(call.func, ast.Attribute) else step.name.rpartition(".")[2]
    if not SENDS.search(last) or OF_NUMBERS.search(last):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(call.func, ast.Attribute):
        given.append(call.func.value)
    return any(OF_STATES.search(word) for each in given for word in _list_words(each, step.scope, 0))


def _list_words(node: ast.AST, scope: Scope, depth: int) -> Iterator[str]:
    """Yield the names of an expression, and of what its variables are made of in the same function."""
    if isinstance(node, ast.Call):  # what a function gives may be a number out of a state
        if isinstance(node.func, ast.Attribute):
            yield from names_in(node.func.value)
            yield from [node.func.attr] if node.func.attr in GIVES else []
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from _list_words(each, scope, depth)
    elif isinstance(node, ast.Name):
        yield node.id
        for value in scope.bound.get(node.id, ()) if depth < DEEPEST else ():
            if not isinstance(value, ast.Call) or value.args:
                yield from _list_words(value, scope, depth + 1)
    elif isinstance(node, ast.Attribute):
        yield from names_in(node)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _list_words(child, scope, depth)


def _find_kind(step: Step, wraps: list[Step], kinds: Kinds) -> tuple[str, Step | None] | None:
    """Return what is loaded: ``optimizer``, or ``model`` with the step that wrapped it before."""
    if step.call is None or not isinstance(step.call.func, ast.Attribute):
        return None
    values = kinds.find(step.call.func.value, step.scope)
    loaded = {each.kind for each in values}
    if "optimizer" in loaded and loaded <= RESTORED:  # of several, each of a table is loaded in turn
        return "optimizer", None
    for wrap in wraps:
        made = kinds.find(wrap.call, wrap.scope) if wrap.call is not None else ()
        own = {one.identity for each in made for one in (each, *each.inner)}
        if values and all(_is_model(each) and each.identity in own for each in values):
            return "model", wrap
    return None


def _is_model(value: Value) -> bool:
    return value.kind in ("model", "wrapped")


@diagnosis("lint.restored", codes=("NUM001", "NUM006"), family="source", needs=NEEDS, commands=LINT)
def tell_restored_apart(evidence: Evidence) -> Iterable[Finding]:
    """Some ranks load the state of a model or an optimizer, and the others train on without it."""
    for fact in facts_of(evidence, "restored-apart"):
        test = fact.details["test"]
        if fact.details["kind"] == "optimizer":
            yield replace(
                tell_fact(
                    fact,
                    f"The optimizer state is loaded at {name_line(fact.place)} on some ranks only (test {test}): the "
                    "other ranks start with an empty state, and the replicas diverge.",
                    Fix("load the optimizer state on every rank", code=fact.place.text),
                    why="DistributedDataParallel broadcasts parameters and buffers, never the optimizer state",
                    severity="warning",
                ),
                code="NUM006",
            )
            continue
        wrap = name_line(fact.related[0].place)
        yield replace(
            tell_fact(
                fact,
                f"The model is loaded at {name_line(fact.place)} on some ranks only (test {test}), after "
                f"DistributedDataParallel was created at {wrap}: the replicas differ from then on.",
                Fix(
                    "load the state on every rank, or load it before the model is wrapped",
                    code=f"{fact.place.text}\n{fact.related[0].place.text}",
                ),
                why="DistributedDataParallel broadcasts the parameters of rank 0 only when it is created",
            ),
            code="NUM001",
        )
