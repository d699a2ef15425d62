"""PRF005: gradients accumulate, and each backward reduces them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import names_in
from ddpdoctor.source.training.train_loops import (
    TrainingLoop,
    enclosing_loops,
    is_backward,
    is_step,
    training_loops,
)
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

SWITCHES = frozenset({"no_sync", "require_backward_grad_sync", "set_requires_gradient_sync"})
"""Names by which a program says when gradients are reduced."""
OF_FRAMEWORKS = frozenset({"accumulate", "gradient_accumulation_steps"})
"""What frameworks that reduce by themselves are called by or given: a method, a keyword, a key of a configuration. A
variable of that name is the program's own."""


@lint_rule("accumulation-reduced", reads="files")
def find_redundant(files: Files) -> Iterator[SourceFact]:
    """Yield backwards that accumulate gradients and reduce them each time (``accumulation-reduced``).

    count: its text. known: there where the script spells out that it is above one.
    """
    kinds = kinds_of(files)
    for loop in training_loops(kinds):
        if not loop.wrapped or not isinstance(loop.node, (ast.For, ast.AsyncFor)):
            continue
        test = _find_interval(loop, kinds) or _find_inner(loop, kinds)
        if test is None or _speaks_of_switch(loop, kinds):
            continue
        backward = next(each for each in _own_calls(loop) if is_backward(each))
        count = _value_of(
            test.args[0] if isinstance(test, ast.Call) and test.args else test, loop.scope, kinds
        )
        if count is not None and count < 2:
            continue
        place = loop.scope.place(backward)
        details = {"count": ast.unparse(test), **({"known": str(count)} if count is not None else {})}
        yield SourceFact("accumulation-reduced", place, details=details)


def _own_calls(loop: TrainingLoop) -> list[ast.Call]:
    return [node for each in loop.node.body for node in ast.walk(each) if isinstance(node, ast.Call)]


def _speaks_of_switch(loop: TrainingLoop, kinds: Kinds) -> bool:
    return kinds.programs.any_file(loop.scope.module, _has_switch)


def _has_switch(member: Scope) -> bool:
    return not SWITCHES.isdisjoint(names_in(member.node)) or any(
        not OF_FRAMEWORKS.isdisjoint(_given_names(node)) for node in ast.walk(member.node)
    )


def _given_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        yield from (each.arg for each in node.keywords if each.arg)
        if isinstance(node.func, ast.Attribute):
            yield node.func.attr
    elif isinstance(node, ast.Dict):
        yield from (
            each.value for each in node.keys if isinstance(each, ast.Constant) and isinstance(each.value, str)
        )


def _find_interval(loop: TrainingLoop, kinds: Kinds) -> ast.expr | None:
    """Return ``n`` of the ``if (i + 1) % n == 0:`` below which alone the optimizer steps; None where there is none."""
    for statement in loop.node.body:
        if not isinstance(statement, ast.If) or statement.orelse:
            continue
        steps = [
            each for inner in statement.body for each in ast.walk(inner) if is_step(each, loop.scope, kinds)
        ]
        inside = [each for inner in statement.body for each in ast.walk(inner)]
        modulo = [each.right for each in ast.walk(statement.test) if isinstance(each, ast.BinOp)
                  and isinstance(each.op, ast.Mod)]  # fmt: skip
        outside = [each for each in _own_calls(loop) if not any(each is one for one in inside)]
        if (
            len(modulo) == 1
            and steps
            and sum(map(is_backward, outside)) == 1
            and not any(isinstance(each, ast.Call) and is_backward(each) for each in inside)
            and not any(is_step(each, loop.scope, kinds) for each in outside)
        ):
            return modulo[0]
    return None


def _find_inner(loop: TrainingLoop, kinds: Kinds) -> ast.expr | None:
    """Return what a loop over micro-batches goes through, where the loop around it steps the optimizer after it."""
    words = ("micro", "accum", "chunk")
    if not isinstance(loop.node, ast.For) or not any(
        w in n.lower() for n in names_in(loop.node.iter) for w in words
    ):
        return None
    around = enclosing_loops(loop.node, loop.scope, kinds)
    if not around or any(is_step(call, home, kinds) for call, home in loop.calls):
        return None
    if sum(map(is_backward, _own_calls(loop))) != 1:
        return None
    body = getattr(around[0], "body", [])
    later = body[body.index(loop.node) + 1 :] if loop.node in body else []
    steps = [each for statement in later for each in ast.walk(statement) if is_step(each, loop.scope, kinds)]
    others = [each for each in body if each is not loop.node]
    alone = not any(isinstance(n, ast.Call) and is_backward(n) for each in others for n in ast.walk(each))
    return loop.node.iter if steps and alone else None


def _value_of(node: ast.expr, scope: Scope, kinds: Kinds) -> int | None:
    """Return the number that a name stands for, where it is bound once to a constant."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    found = scope.lookup(node.id) if isinstance(node, ast.Name) else None
    if found is None or len(found[1]) != 1 or not isinstance(found[1][0], ast.Constant):
        return None
    return _value_of(found[1][0], found[0], kinds)


@check("PRF005", family="source", needs=("sources",), id="lint.reductions", commands=LINT)
def tell_redundant(evidence: Evidence) -> Iterable[Finding]:
    """Gradients accumulate, and each backward reduces them."""
    for fact in facts_of(evidence, "accumulation-reduced"):
        yield tell_fact(
            fact,
            f"Each backward pass at {name_line(fact.place)} all-reduces the gradients, but the optimizer "
            f"steps only after several ({fact.details['count']}): one reduction per step is enough.",
            Fix(
                "reduce with the last micro-batch only",
                code="with contextlib.nullcontext() if last else model.no_sync():\n"
                "    loss = criterion(model(inputs), targets) / accumulate\n    loss.backward()",
            ),
            why="the model is wrapped, and nothing in the program mentions no_sync",
            severity=None if "known" in fact.details else "info",
            role="advice",
        )
