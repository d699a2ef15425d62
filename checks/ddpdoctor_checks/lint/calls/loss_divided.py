"""NUM009: a loss is divided by the number of ranks, and DistributedDataParallel averages its gradients as well."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import name_last
from ddpdoctor.source.training.train_loops import is_backward, training_loops
from ddpdoctor_checks.lint.calls.averaged_twice import is_size, multiplies
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

SUMS = frozenset({"register_comm_hook", "all_gather_with_grad", "GatherLayer"})
WITH_GRADIENT = ("torch.distributed.nn.", "torch.distributed._functional_collectives.")
"""Collectives through which gradients flow: what they gather is summed in the backward pass."""


@lint_rule("loss-divided", reads="files")
def find_divided(files: Files) -> Iterator[SourceFact]:
    """Yield backward passes of a loss that was divided by the number of ranks (``loss-divided``).

    DistributedDataParallel divides gradients by it as well
    (https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html). Silent in a program
    that multiplies anything by that number, such as the learning rate, and in one whose collectives carry gradients or
    whose reduction is its own. A forward pass through the wrapper is beside.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not loop.wrapped or _compensates(loop.scope.module, kinds):
            continue
        forward = loop.wrapped[0]
        for call, scope in loop.calls:
            divided = _find_division(call, scope, kinds) if is_backward(call) and call not in told else None
            if divided is not None:
                told.add(call)
                beside = (RelatedPlace("noticed", forward.scope.place(forward.call)),)
                yield SourceFact("loss-divided", scope.place(divided), beside)


def _find_division(call: ast.Call, scope: Scope, kinds: Kinds) -> ast.AST | None:
    """Return the division by the number of ranks of what a backward pass begins with, by its last assignment."""
    if not isinstance(call.func, ast.Attribute):
        return None
    loss = call.func.value
    if _is_divided(loss):
        return call
    own = kinds.flow(scope).spot(call)
    if not isinstance(loss, ast.Name) or own is None:
        return None
    last: ast.stmt | None = None
    for statement, spot in kinds.flow(scope).statements:
        if spot.number >= own.number:
            break
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        if any(isinstance(each, ast.Name) and each.id == loss.id for each in targets):
            last = statement if spot.surely_before(own) else None
    if isinstance(last, ast.AugAssign):
        return last if isinstance(last.op, ast.Div) and is_size(last.value) else None
    return last if isinstance(last, ast.Assign) and _is_divided(last.value) else None


def _is_divided(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div) and is_size(node.right)
    called = isinstance(node, ast.Call) and name_last(node.func) == "div" and len(node.args) == 1
    return isinstance(node, ast.Call) and called and is_size(node.args[0])


def _compensates(module: Scope, kinds: Kinds) -> bool:
    """Whether a program multiplies by the number of ranks, or sums gradients itself."""
    return kinds.programs.any_file(module, _sums, kinds)


def _sums(member: Scope, kinds: Kinds) -> bool:
    return multiplies(member.node) or any(
        name_last(call.func) in SUMS or name.startswith(WITH_GRADIENT)
        for call, _, name in kinds.programs.list_calls(member)
    )


@check("NUM009", family="source", needs=NEEDS, id="lint.loss_divided", commands=LINT)
def tell_divided(evidence: Evidence) -> Iterable[Finding]:
    """A loss is divided by the number of ranks before gradients are averaged."""
    for fact in facts_of(evidence, "loss-divided"):
        yield tell_fact(
            fact,
            f"The loss is divided by the world size at {name_line(fact.place)}, and DistributedDataParallel averages "
            "the gradients too: they are too small by that factor.",
            Fix("drop the division: gradients are averaged already", code="loss.backward()"),
            why=f"the loss comes from the wrapper called at {name_line(fact.related[0].place)}; nothing multiplies by "
            "the world size",
            severity="warning",
        )
