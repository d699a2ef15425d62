"""COL010: gathered tensors without their gradient in a loss."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import PLAIN
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_calls, names_in, own_nodes
from ddpdoctor.source.training.graphs import Slice, loss_of, slice_of
from ddpdoctor.source.training.train_loops import find_backwards, find_forwards
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

GATHERS = frozenset(
    f"{prefix}{name}" for prefix in PLAIN for name in ("all_gather", "all_gather_into_tensor")
)
NO_GRADIENT = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
JOINED = frozenset({"cat", "stack", "concat", "vstack", "hstack"})
"""Functions that join tensors."""


@lint_rule("gather-without-gradient", reads="files")
def find_gathered(files: Files) -> Iterator[SourceFact]:
    """Yield gathered tensors that had a gradient and are part of a loss without it (``gather-without-gradient``).

    into: the variable that is gathered into. what: what is gathered.
    """
    kinds = kinds_of(files)
    losses = None
    for module in files.modules:
        for scope in module.walk():
            for call in find_calls(scope):
                if files.dotted(call.func, scope) not in GATHERS or len(call.args) < 2:
                    continue
                into, what = call.args[:2]
                if (
                    not isinstance(into, ast.Name)
                    or _is_constant(call, scope, files)
                    or _puts_back(into, what, scope)
                ):
                    continue
                losses = _slice_losses(kinds) if losses is None else losses
                used = [each for each in losses if (into.id, scope) in each.behind.names]
                forwards = [one for one in find_forwards(slice_of(what, scope, kinds).calls, kinds)
                            if all(v.kind in ("wrapped", "prepared model") for v in one.values)]  # fmt: skip
                if (
                    used
                    and forwards
                    and not any(_is_constant(one.call, one.scope, files) for one in forwards)
                ):
                    noticed = used[0].scope.place(used[0].call)
                    place = scope.place(call)
                    details = {"into": into.id, "what": ast.unparse(what)}
                    yield SourceFact(
                        "gather-without-gradient", place, (RelatedPlace("noticed", noticed),), details
                    )


@dataclass(frozen=True, slots=True)
class _Loss:
    call: ast.Call
    scope: Scope
    behind: Slice


def _slice_losses(kinds: Kinds) -> list[_Loss]:
    found = []
    for call, scope in find_backwards(kinds).items():
        loss = loss_of(call)
        if loss is not None:
            found.append(_Loss(call, scope, slice_of(loss, scope, kinds)))
    return found


def _is_constant(node: ast.AST, scope: Scope, files: Files) -> bool:
    """Whether a call stands where no gradients are made, or in a function of autograd's own."""
    for each in scope.outwards():
        if isinstance(each.node, ast.ClassDef):
            bases = [files.dotted(base, each.outer or each) or "" for base in each.node.bases]
            if any(
                base.endswith("autograd.Function") or base.endswith("function.Function") for base in bases
            ):
                return True
        for decorator in getattr(each.node, "decorator_list", ()):
            if not NO_GRADIENT.isdisjoint(names_in(decorator)):
                return True
    return any(
        isinstance(each, ast.With)
        and any(not NO_GRADIENT.isdisjoint(names_in(item.context_expr)) for item in each.items)
        and any(inner is node for inner in ast.walk(each))
        for each in own_nodes(scope.node)
    )


def _puts_back(into: ast.Name, what: ast.expr, scope: Scope) -> bool:
    """Whether the rank's own part is put in its place, or joined with those of the others."""
    own = {each.id for each in ast.walk(what) if isinstance(each, ast.Name)}
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == into.id:
                return True
            if any("rank" in name for name in names_in(node.slice)):
                return True  # in what was joined of it
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in JOINED and node.args:
            row = node.args[0].elts if isinstance(node.args[0], (ast.List, ast.Tuple)) else []
            if len(row) > 1 and any(isinstance(each, ast.Name) and each.id in own for each in row):
                return True
        elif isinstance(node, (ast.List, ast.Tuple, ast.BinOp)):
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            if into.id in names and own & names and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                return True
    return False


@check("COL010", family="source", needs=("sources",), id="lint.gathers", commands=LINT)
def tell_gathered(evidence: Evidence) -> Iterable[Finding]:
    """Outputs of a model are gathered, and the loss is made of what has no gradient."""
    for fact in facts_of(evidence, "gather-without-gradient"):
        into, what = fact.details["into"], fact.details["what"]
        yield tell_fact(
            fact,
            f"The output of all_gather at {name_line(fact.place)} has no gradient, but the loss of the "
            f"backward pass at {name_line(fact.related[0].place)} is computed from it.",
            Fix(
                "put this rank's own part back, with its gradient",
                code=f"{into} = torch.cat(torch.distributed.nn.functional.all_gather({what}))"
                if "into_tensor" in fact.place.text
                else f"{fact.place.text}\n{into}[dist.get_rank()] = {what}",
            ),
            why=f"{what} is an output of a DistributedDataParallel model; {into} is used as gathered",
        )
