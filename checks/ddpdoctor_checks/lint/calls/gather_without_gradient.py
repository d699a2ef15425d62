"""COL010: gathered tensors without their gradient in a loss."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import PLAIN
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_argument, find_calls, names_in, own_nodes
from ddpdoctor.source.training.graphs import Slice, loss_of, slice_of
from ddpdoctor.source.training.train_loops import Forward, find_backwards, find_forwards
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question

GATHERS = frozenset(
    f"{prefix}{name}" for prefix in PLAIN for name in ("all_gather", "all_gather_into_tensor")
)
NO_GRADIENT = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
JOINED = frozenset({"cat", "stack", "concat", "vstack", "hstack"})
"""Functions that join tensors."""


@lint_rule("gather-without-gradient", "gather-doubted", reads="files")
def find_gathered(files: Files) -> Iterator[SourceFact]:
    """Yield gathered tensors that had a gradient and are part of a loss without it (``gather-without-gradient``).

    Where a call that is not followed gets the rank's own part as well, or the gather stands below ``torch.no_grad``,
    which may be meant, it is a question (``gather-doubted``; why: ``beside`` or ``no_grad``).

    into: the variable that is gathered into. what: what is gathered.
    """
    kinds = kinds_of(files)
    losses = None
    gathering = kinds.programs.scopes_calling(GATHERS)
    for module in files.modules:
        for scope in module.walk():
            for call in find_calls(scope) if scope in gathering else ():
                if files.dotted(call.func, scope) not in GATHERS or len(call.args) < 2:
                    continue
                into, what = call.args[:2]
                if (
                    not isinstance(into, ast.Name)
                    or _is_of_autograd(scope, files)
                    or _puts_back(into, what, scope)
                    or any(_sets_own(home) for _, home in kinds.callers(scope))
                ):
                    continue
                losses = _slice_losses(kinds) if losses is None else losses
                lacking = (each for each in losses if (into.id, scope) in each.behind.names)
                for loss in lacking:
                    forwards = _find_forwards(what, scope, loss, kinds)
                    if not forwards or any(_is_constant(one.call, one.scope, files) for one in forwards):
                        continue
                    constant = _is_constant(call, scope, files)
                    doubted = constant or _goes_beside((into.id, scope), forwards, loss.behind, kinds)
                    yield SourceFact(
                        "gather-doubted" if doubted else "gather-without-gradient",
                        scope.place(call),
                        (RelatedPlace("noticed", loss.scope.place(loss.call)),),
                        {
                            "into": into.id,
                            "what": ast.unparse(what),
                            "why": "no_grad" if constant else "beside" if doubted else "",
                        },
                    )
                    break


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


def _is_of_autograd(scope: Scope, files: Files) -> bool:
    """Whether a function is one of a class of autograd's own functions."""
    for each in scope.outwards():
        if isinstance(each.node, ast.ClassDef):
            bases = [files.dotted(base, each.outer or each) or "" for base in each.node.bases]
            if any(base.endswith(("autograd.Function", "function.Function")) for base in bases):
                return True
    return False


def _is_constant(node: ast.AST, scope: Scope, files: Files) -> bool:
    """Whether a call stands where no gradients are made."""
    if _is_of_autograd(scope, files):
        return True
    for each in scope.outwards():
        for decorator in getattr(each.node, "decorator_list", ()):
            if not NO_GRADIENT.isdisjoint(names_in(decorator)):
                return True
    return any(
        isinstance(each, ast.With)
        and any(not NO_GRADIENT.isdisjoint(names_in(item.context_expr)) for item in each.items)
        and any(inner is node for inner in ast.walk(each))
        for each in own_nodes(scope.node)
    )


def _sets_own(scope: Scope) -> bool:
    """Whether a function sets what stands at the rank's own place."""
    return any(
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and any("rank" in name for name in names_in(node.slice))
        for node in own_nodes(scope.node)
    )


def _puts_back(into: ast.Name, what: ast.expr, scope: Scope) -> bool:
    """Whether the rank's own part is put in its place, or joined with those of the others."""
    own = {each.id for each in ast.walk(what) if isinstance(each, ast.Name)}
    if _sets_own(scope):
        return True  # perhaps in what was joined of it
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == into.id:
                return True
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in JOINED and node.args:
            row = node.args[0].elts if isinstance(node.args[0], (ast.List, ast.Tuple)) else []
            if len(row) > 1 and any(isinstance(each, ast.Name) and each.id in own for each in row):
                return True
        elif isinstance(node, (ast.List, ast.Tuple, ast.BinOp)):
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            if into.id in names and own & names and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                return True
    return False


def _find_forwards(what: ast.expr, scope: Scope, loss: _Loss, kinds: Kinds) -> list[Forward]:
    """Return the forwards of distributed models whose outputs are gathered for a loss."""
    return [
        one
        for given, home in _gathered_for(what, scope, loss, kinds)
        for one in find_forwards(slice_of(given, home, kinds).calls, kinds)
        if all(v.kind in ("wrapped", "prepared model") for v in one.values)
    ]


def _gathered_for(
    what: ast.expr, scope: Scope, loss: _Loss, kinds: Kinds
) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what is gathered for this loss: of a parameter, what the calls behind the loss give it."""
    behind = {id(call) for call, _ in loss.behind.calls}
    given = [
        (one, home)
        for call, home in kinds.callers(scope)
        if id(call) in behind and isinstance(what, ast.Name)
        if (one := find_argument(call, scope, what.id)) is not None
    ]
    yield from given or [(what, scope)]


def _goes_beside(into: tuple[str, Scope], forwards: Sequence[Forward], loss: Slice, kinds: Kinds) -> bool:
    """Whether a call that is not followed gets the rank's own part beside what was gathered of it.

    It may keep what was gathered, as a bank of features does, and make the loss of the own part.
    """
    outputs = {id(one.call) for one in forwards}
    for call, scope in loss.calls:
        given = [*call.args, *(each.value for each in call.keywords)]
        if len(given) < 2 or kinds.files.function(call.func, scope) is not None:
            continue
        if (kinds.files.dotted(call.func, scope) or "").startswith("torch."):
            continue
        behind = [slice_of(each, scope, kinds) for each in given]
        gathered = [into in each.names for each in behind]
        own = [any(id(one) in outputs for one, _ in each.calls) for each in behind]
        if any(gathered) and any(o and not g for o, g in zip(own, gathered, strict=True)):
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
            _make_fix(fact),
            why=f"{what} is an output of a DistributedDataParallel model; {into} is used as gathered",
        )


@check("COL010", family="source", needs=NEEDS, id="lint.gathers_doubted", commands=LINT)
def ask_gathered(evidence: Evidence) -> Iterable[Finding]:
    """Outputs of a model are gathered and handed, beside the rank's own, to what makes the loss."""
    for fact in facts_of(evidence, "gather-doubted"):
        yield tell_question(
            fact,
            f"The output of all_gather at {name_line(fact.place)} has no gradient: is the loss of the "
            f"backward pass at {name_line(fact.related[0].place)} computed from it, or only from this rank's part?",
            _make_fix(fact),
            why="both are handed to a call that is not followed"
            if fact.details["why"] == "beside"
            else "the gather is below torch.no_grad, and what is gathered is an output of the model",
        )


def _make_fix(fact: SourceFact) -> Fix:
    into, what = fact.details["into"], fact.details["what"]
    return Fix(
        "put this rank's own part back, with its gradient",
        code=f"{into} = torch.cat(torch.distributed.nn.functional.all_gather({what}))"
        if "into_tensor" in fact.place.text
        else f"{fact.place.text}\n{into}[dist.get_rank()] = {what}",
    )
