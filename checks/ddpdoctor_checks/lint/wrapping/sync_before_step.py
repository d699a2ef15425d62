"""DDP008: the micro-batch whose gradients DDP reduces is another one than that before the step of the optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
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


@lint_rule("sync-before-step", reads="files")
def find_shifted_steps(files: Files) -> Iterator[SourceFact]:
    """Yield steps of the optimizer at another micro-batch than the one that DDP reduces (``sync-before-step``).

    ``no_sync`` is entered unless one number is a multiple of the interval, and the step is taken where another number
    is, both counted by one loop with different offsets: for no interval above 1 do they fall together
    (https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html, ``no_sync``). The
    line that decides on ``no_sync`` is beside it.
    """
    kinds = kinds_of(files)
    for loop in training_loops(kinds):
        if not isinstance(loop.node, ast.For):
            continue
        step = _find_step(loop, kinds)
        if step is None or reduces_by_hand(loop.scope, kinds):
            continue
        statement, reduced = step
        for scope in dict.fromkeys((loop.scope, *(home for _, home in loop.calls))):
            for node, residue in _find_switches(scope, kinds):
                moved = _move(residue, scope, loop, kinds, 0)
                if moved is None or (moved.counter, moved.interval) != (reduced.counter, reduced.interval):
                    continue
                if moved.offset != reduced.offset:
                    beside = RelatedPlace("noticed", scope.place(node))
                    details = {"step": ast.unparse(statement.test)}
                    yield SourceFact("sync-before-step", loop.scope.place(statement), (beside,), details)
                    break


def _find_step(loop: TrainingLoop, kinds: Kinds) -> tuple[ast.If, Residue] | None:
    """Return the only test below which the optimizer steps, behind the backward pass in the body of the loop."""
    scope, behind = loop.scope, False
    for statement in loop.node.body:
        if isinstance(statement, ast.If):
            inside = [each for inner in statement.body for each in ast.walk(inner)]
            residue = read_residue(statement.test, scope)
            if (
                behind
                and residue is not None
                and residue.zero
                and any(is_step(e, scope, kinds) for e in inside)
            ):
                return (statement, residue) if _is_counted(residue.counter, loop) else None
        if any(is_backward(call) for call, _ in reach([statement], scope, kinds)):
            behind = True
    return None


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
        residue = read_residue(node.test, scope)
        body, other = (
            ([node.body], [node.orelse]) if isinstance(node, ast.IfExp) else (node.body, node.orelse)
        )
        quiet, loud = _enters_no_sync(body), _enters_no_sync(other)
        if residue is not None and quiet != loud and residue.zero is loud:
            yield node, residue
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign) and any(
            getattr(each, "attr", "") == "require_backward_grad_sync" for each in node.targets
        ):
            residue = read_residue(node.value, scope)
            if residue is not None and residue.zero:
                yield node, residue


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
    counted = _read_sum(find_argument(call, scope, residue.counter))
    interval = residue.interval
    if interval in scope.parameters:
        given = find_argument(call, scope, interval)
        interval = ast.unparse(given) if given is not None else ""
    if counted is None:
        return None
    moved = replace(residue, counter=counted[0], offset=residue.offset + counted[1], interval=interval)
    return _move(moved, home, loop, kinds, depth + 1)


def read_residue(test: ast.expr, scope: Scope, depth: int = 0) -> Residue | None:
    """Return what a test asks of the remainder of a counter; of several tests the only one that does.

    Args:
        test: the test; ``(i + 1) % n``, its comparison with 0 or ``n - 1``, or a variable that is one of these.
        scope: where it stands.
        depth: variables that were followed so far.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = read_residue(test.operand, scope, depth)
        return replace(inner, zero=not inner.zero) if inner is not None else None
    if isinstance(test, ast.BoolOp):
        found = [each for value in test.values if (each := read_residue(value, scope, depth)) is not None]
        return found[0] if len(found) == 1 and found[0].zero is isinstance(test.op, ast.Or) else None
    if isinstance(test, ast.Name):
        values = scope.bound.get(test.id, [])
        only = values[0] if len(values) == 1 and values[0] is not UNKNOWN else None
        return read_residue(only, scope, depth + 1) if only is not None and depth < DEEPEST else None
    if isinstance(test, ast.BinOp):
        return _read_remainder(test, zero=False)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    if not isinstance(test.ops[0], (ast.Eq, ast.NotEq)) or not isinstance(test.left, ast.BinOp):
        return None
    found_one = _read_remainder(test.left, zero=isinstance(test.ops[0], ast.Eq))
    right = test.comparators[0]
    if found_one is None:
        return None
    if isinstance(right, ast.Constant) and right.value == 0:
        return found_one
    if ast.unparse(right) == f"{found_one.interval} - 1":
        return replace(found_one, offset=found_one.offset + 1)
    return None


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
            why="both conditions count with the same variable and interval, but with different offsets",
        )
