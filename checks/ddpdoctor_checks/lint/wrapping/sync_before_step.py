"""DDP008: the micro-batch whose gradients DDP reduces is another one than that before the step of the optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.walking import find_argument, own_nodes
from ddpdoctor.source.training.train_loops import TrainingLoop, is_backward, is_step, reach, training_loops
from ddpdoctor.source.training.wraps import reduces_by_hand
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

WHY = {
    "shifted": "both conditions count with the same variable and interval, but with different offsets",
    "opposite": "no_sync is entered for exactly the micro-batches after which the optimizer steps",
    "never": "the remainder of a division is always smaller than the divisor: no micro-batch is reduced",
}
DEEPEST = 3
"""Functions over which the number of a micro-batch is followed to the loop that counts it."""


@dataclass(frozen=True, slots=True)
class Residue:
    """A test such as ``(i + 1) % n == 0``: true where the counter and the offset are a multiple of the interval."""

    counter: str
    offset: int
    interval: str
    zero: bool
    """Whether it is true for multiples; otherwise it is for all other numbers."""
    never: bool = False
    """Whether it asks for ``n`` itself, ``i % n == n``: no remainder is that large, so it is false for all numbers."""

    def negate(self) -> Residue:
        """Return the opposite test."""
        return replace(self, zero=not self.zero)


@lint_rule("sync-before-step", reads="files")
def find_shifted_steps(files: Files) -> Iterator[SourceFact]:
    """Yield steps of the optimizer at another micro-batch than the one that DDP reduces (``sync-before-step``).

    ``no_sync`` is entered by the remainder of one number, and the step is taken where another number is a multiple of
    the same interval, both counted by one loop: with different offsets, or with the opposite test, for no interval
    above 1 do they fall together
    (https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html, ``no_sync``). The
    line that decides on ``no_sync`` is beside it. how: ``shifted``, ``opposite`` or ``never``.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not isinstance(loop.node, ast.For) or reduces_by_hand(loop.scope, kinds):
            continue
        scopes = tuple(dict.fromkeys((loop.scope, *(home for _, home in loop.calls))))
        steps = [each for scope in scopes for each in _find_steps(scope, loop, kinds)]
        if len(steps) != 1 or steps[0][0] in told:
            continue
        statement, stepped, reduced = steps[0]
        for scope in scopes:
            for node, residue in _find_switches(scope, kinds):
                moved = _move(residue, scope, loop, kinds, 0)
                if moved is None or moved.counter != reduced.counter:
                    continue
                if _spell(moved.interval, loop.scope) != _spell(reduced.interval, loop.scope):
                    continue
                how = _compare(moved, reduced)
                if how is not None:
                    told.add(statement)
                    beside = RelatedPlace("noticed", scope.place(node))
                    details = {"step": ast.unparse(statement.test), "how": how}
                    yield SourceFact("sync-before-step", stepped.place(statement), (beside,), details)
                    break


def _spell(interval: str, scope: Scope) -> str:
    """Return what a variable of a function is bound to, where that is another name alone."""
    values = scope.bound.get(interval, [])
    only = values[0] if len(values) == 1 else None
    return ast.unparse(only) if isinstance(only, (ast.Name, ast.Attribute)) else interval


def _compare(reduces: Residue, steps: Residue) -> str | None:
    """Return in which way the micro-batches that are reduced are not those before a step; None where they may be."""
    if reduces.never:
        return "never" if reduces.zero else None
    if reduces.zero:
        return "shifted" if reduces.offset != steps.offset else None
    return "opposite" if reduces.offset == steps.offset else None


def _find_steps(scope: Scope, loop: TrainingLoop, kinds: Kinds) -> Iterator[tuple[ast.If, Scope, Residue]]:
    """Yield tests of a function below or behind which the optimizer steps, behind the backward pass.

    With what the function of the loop would write for them.
    """
    body = loop.node.body if scope is loop.scope else getattr(scope.node, "body", [])
    behind = False
    tested: tuple[ast.If, Residue] | None = None
    for statement in body:
        residue = None
        if isinstance(statement, ast.If) and not statement.orelse:
            residue = read_residue(statement.test, scope, kinds)
        if any(is_step(each, scope, kinds) for each in ast.walk(statement)):
            if isinstance(statement, ast.If):
                tested = (statement, residue) if residue is not None else None
            moved = _move(tested[1], scope, loop, kinds, 0) if tested is not None and behind else None
            if tested is None or moved is None or not moved.zero or moved.never:
                return
            if _is_counted(moved.counter, loop):
                yield tested[0], scope, moved
            return
        if isinstance(statement, ast.If) and residue is not None and _leaves(statement.body[-1]):
            tested = statement, residue.negate()
        if any(is_backward(call) for call, _ in reach([statement], scope, kinds)):
            behind = True


def _leaves(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Continue, ast.Return))


def _is_counted(name: str, loop: TrainingLoop) -> bool:
    """Whether a variable is bound by the loop itself and by nothing in it."""
    stored = [
        each.id
        for inner in loop.node.body
        for each in ast.walk(inner)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    ]
    target = getattr(loop.node, "target", None)
    named = target is not None and any(getattr(each, "id", "") == name for each in ast.walk(target))
    return named and name not in stored


def _find_switches(scope: Scope, kinds: Kinds) -> Iterator[tuple[ast.AST, Residue]]:
    """Yield what decides on ``no_sync`` in a function, and for which micro-batches DDP then reduces."""
    for node in own_nodes(scope.node):
        if not isinstance(node, (ast.If, ast.IfExp)):
            continue
        residue = read_residue(node.test, scope, kinds)
        body, other = (
            ([node.body], [node.orelse])
            if isinstance(node, ast.IfExp)
            else (node.body, _list_other(node, scope))
        )
        quiet, loud = _enters_no_sync(body), _enters_no_sync(other)
        if residue is not None and quiet != loud:
            yield node, residue if loud else residue.negate()
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign) and any(
            getattr(each, "attr", "") == "require_backward_grad_sync" for each in node.targets
        ):
            residue = read_residue(node.value, scope, kinds)
            if residue is not None:
                yield node, residue


def _list_other(node: ast.If, scope: Scope) -> Sequence[ast.AST]:
    """Return what runs on the other side of a test: behind one that returns, the rest of the function."""
    body = getattr(scope.node, "body", [])
    if node.orelse or node not in body or not isinstance(node.body[-1], ast.Return):
        return node.orelse
    return list(body[body.index(node) + 1 :])


def _enters_no_sync(nodes: Iterable[ast.AST]) -> bool:
    return any(getattr(each, "attr", "") == "no_sync" for node in nodes for each in ast.walk(node))


def _move(residue: Residue, scope: Scope, loop: TrainingLoop, kinds: Kinds, depth: int) -> Residue | None:
    """Return a test of a function as the function of the loop would write it."""
    if scope is loop.scope:
        return residue
    if residue.counter not in scope.parameters or depth > DEEPEST:
        return None
    calls = [(call, home) for call, home in kinds.callers(scope) if (call, home) in loop.calls]
    if len(calls) != 1:
        return None
    call, home = calls[0]
    moved = _give(residue, call, scope)
    return _move(moved, home, loop, kinds, depth + 1) if moved is not None else None


def _give(residue: Residue, call: ast.Call, function: Scope) -> Residue | None:
    """Return a test of a function as who calls it would write it."""
    counted = _read_sum(find_argument(call, function, residue.counter))
    interval = residue.interval
    if interval in function.parameters:
        given = find_argument(call, function, interval)
        interval = ast.unparse(given) if given is not None else ""
    if counted is None:
        return None
    return replace(residue, counter=counted[0], offset=residue.offset + counted[1], interval=interval)


def read_residue(test: ast.expr, scope: Scope, kinds: Kinds, depth: int = 0) -> Residue | None:
    """Return what a test asks of the remainder of a counter; of several tests the only one that does.

    Args:
        test: the test; ``(i + 1) % n``, its comparison with a number, with ``n - 1`` or ``n``, a variable that is one
            of these, or a call of a function that returns one.
        scope: where it stands.
        kinds: what values are.
        depth: variables and functions that were followed so far.
    """
    if depth > DEEPEST:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = read_residue(test.operand, scope, kinds, depth)
        return inner.negate() if inner is not None else None
    if isinstance(test, ast.BoolOp):
        read = (read_residue(value, scope, kinds, depth) for value in test.values)
        found = [each for each in read if each is not None]
        alone = len(found) == 1 and not found[0].never
        return found[0] if alone and found[0].zero is isinstance(test.op, ast.Or) else None
    if isinstance(test, ast.Name):
        values = scope.bound.get(test.id, [])
        only = values[0] if len(values) == 1 and values[0] is not UNKNOWN else None
        return read_residue(only, scope, kinds, depth + 1) if only is not None else None
    if isinstance(test, ast.Call):
        return _read_answer(test, scope, kinds, depth)
    if isinstance(test, ast.BinOp):
        return _read_remainder(test, zero=False)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    if not isinstance(test.ops[0], (ast.Eq, ast.NotEq)) or not isinstance(test.left, ast.BinOp):
        return None
    found_one = _read_remainder(test.left, zero=isinstance(test.ops[0], ast.Eq))
    return _shift(found_one, test.comparators[0]) if found_one is not None else None


def _shift(remainder: Residue, right: ast.expr) -> Residue | None:
    """Return the test for a remainder that is not 0, as one for a multiple."""
    text, interval = ast.unparse(right), remainder.interval
    if text == "0":
        return remainder
    if text == f"{interval} - 1":
        return replace(remainder, offset=remainder.offset + 1)
    if text == interval:
        return replace(remainder, never=True)
    if text.isdecimal() and interval.isdecimal():
        more = int(interval) - int(text)
        return replace(remainder, offset=remainder.offset + more, never=more <= 0)
    return None


def _read_answer(test: ast.Call, scope: Scope, kinds: Kinds, depth: int) -> Residue | None:
    """Return what a function of the files asks that only returns the answer."""
    function = kinds.called(test, scope)
    body = getattr(function.node, "body", []) if function is not None else []
    only = body[-1].value if len(body) == 1 and isinstance(body[-1], ast.Return) else None
    if function is None or only is None:
        return None
    inner = read_residue(only, function, kinds, depth + 1)
    return _give(inner, test, function) if inner is not None else None


def _read_remainder(node: ast.BinOp, *, zero: bool) -> Residue | None:
    counted = _read_sum(node.left) if isinstance(node.op, ast.Mod) else None
    return Residue(*counted, ast.unparse(node.right), zero) if counted is not None else None


def _read_sum(node: ast.expr | None) -> tuple[str, int] | None:
    """Return the variable and the number of ``i + 1``."""
    if isinstance(node, ast.Name):
        return node.id, 0
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    left, right = node.left, node.right
    if isinstance(left, ast.Constant) and isinstance(node.op, ast.Add):
        left, right = right, left
    if not isinstance(left, ast.Name) or not isinstance(right, ast.Constant) or type(right.value) is not int:
        return None
    return left.id, right.value if isinstance(node.op, ast.Add) else -right.value


@check("DDP008", family="source", needs=NEEDS, id="lint.sync_before_step", commands=LINT)
def tell_shifted_steps(evidence: Evidence) -> Iterable[Finding]:
    """The optimizer steps with gradients of a micro-batch that ran under no_sync."""
    for fact in facts_of(evidence, "sync-before-step"):
        switch = fact.related[0].place
        yield tell_fact(
            fact,
            f"The optimizer steps at {name_line(fact.place)} after a micro-batch that ran under no_sync (decided at "
            f"{name_line(switch)}): its gradients differ across ranks, and the replicas diverge.",
            Fix(
                "use one condition for both",
                code="sync = (i + 1) % accumulation == 0\nwith nullcontext() if sync else model.no_sync():\n"
                "    loss.backward()\nif sync:\n    optimizer.step()",
            ),
            why=WHY[fact.details["how"]],
        )
