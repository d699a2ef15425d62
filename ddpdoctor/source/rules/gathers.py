"""Rules of what ranks gather and reduce: tensors without a gradient in a loss, and results of an evaluation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.calls import PLAIN, SAMPLERS
from ddpdoctor.source.graphs import Slice, loss_of, slice_of
from ddpdoctor.source.kinds import Kinds, kinds_of
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.rules.data import samplers_of
from ddpdoctor.source.steps import find_backwards, find_forwards, is_backward, loaders_of, reach
from ddpdoctor.source.walking import find_calls, names_in, own_nodes

GATHERS = frozenset(
    f"{prefix}{name}" for prefix in PLAIN for name in ("all_gather", "all_gather_into_tensor")
)
NO_GRADIENT = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
JOINING = ("reduce", "gather", "metric", "sync", "average_", "accelerat", "broadcast")
"""Parts of names of what makes one result of those of all ranks."""
REPORTS = frozenset({"print", "info", "log", "add_scalar", "add_scalars", "warning", "write", "set_postfix"})


def find_gathered(files: Files) -> Iterator[SourceFact]:
    """Yield gathered tensors that had a gradient and are part of a loss without it (``gather-without-gradient``).

    names: the variable that is gathered into, and what is gathered.
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
                    names = (into.id, ast.unparse(what))
                    yield SourceFact(
                        "gather-without-gradient", place, (RelatedPlace("noticed", noticed),), names
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
        elif isinstance(node, (ast.List, ast.Tuple, ast.BinOp)):
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            if into.id in names and own & names and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                return True
    return False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A loop over the data of one rank that trains nothing and counts something."""

    node: ast.For
    scope: Scope
    counted: frozenset[str]
    """Variables that are added up."""


def evaluations(kinds: Kinds) -> Iterator[Evaluation]:
    """Yield the loops of all files that evaluate over the part that a DistributedSampler gives a rank."""
    for module in kinds.files.modules:
        for scope in module.walk():
            loops = [each for each in own_nodes(scope.node) if isinstance(each, ast.For)]
            for node in loops:
                counted = frozenset(
                    each.target.id
                    for each in own_nodes(node)
                    if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name)
                )
                spot = kinds.flow(scope).spot(node) if counted else None
                if spot is None or not spot.is_on:
                    continue
                loaders = loaders_of(node.iter, scope, kinds)
                samplers = [one for each in loaders for one in samplers_of(each, kinds)]
                if not samplers or any(each.name not in SAMPLERS for each in samplers):
                    continue
                calls = list(reach(node.body, scope, kinds))
                if not any(is_backward(call) for call, _ in calls) and any(find_forwards(calls, kinds)):
                    yield Evaluation(node, scope, counted)


def find_unreduced(files: Files) -> Iterator[SourceFact]:
    """Yield results of one rank's part of the data in programs that reduce nothing (``metric-unreduced``).

    names: ``decides`` or ``told``, and the variable.
    """
    kinds = kinds_of(files)
    for each in evaluations(kinds):
        module = each.scope.module
        if _joins_results(module, kinds):
            continue
        used = _find_use(each.counted, each.node, each.scope, kinds)
        if used is not None:
            way, name, node, scope = used
            noticed = RelatedPlace("noticed", each.scope.place(each.node))
            yield SourceFact("metric-unreduced", scope.place(node), (noticed,), (way, name))


def _joins_results(module: Scope, kinds: Kinds) -> bool:
    """Whether anything in a program makes one result of several, by its name."""
    members = kinds.programs.members(module)
    names = (name for member in members for name in names_in(member.node))
    imports = (name for member in members for scope in member.walk() for name in scope.imports.values())
    return any(word in name.lower() for each in (names, imports) for name in each for word in JOINING)


def _find_use(
    counted: frozenset[str], loop: ast.stmt, scope: Scope, kinds: Kinds, depth: int = 0
) -> tuple[str, str, ast.AST, Scope] | None:
    """Return how what was counted is used after a statement: in a decision, or where it is told."""
    flow = kinds.flow(scope)
    start = flow.spot(loop)
    names, told, returned = set(counted), None, False
    for statement, spot in flow.statements:
        if start is None or spot.number <= start.number or any(each is statement for each in ast.walk(loop)):
            continue
        if isinstance(statement, (ast.If, ast.While)):
            name = _mentioned(statement.test, names)
            if name is not None and any(isinstance(each, ast.Compare) for each in ast.walk(statement.test)):
                return "decides", name, statement, scope
        elif isinstance(statement, ast.Assign):
            if _mentioned(statement.value, names) is not None:
                names.update(
                    each.id for t in statement.targets for each in ast.walk(t) if isinstance(each, ast.Name)
                )
        elif isinstance(statement, ast.Return) and statement.value is not None:
            returned = returned or _mentioned(statement.value, names) is not None
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and told is None:
            func = statement.value.func
            last = (
                func.attr
                if isinstance(func, ast.Attribute)
                else func.id
                if isinstance(func, ast.Name)
                else ""
            )
            name = _mentioned(statement.value, names)
            told = ("told", name, statement, scope) if name is not None and last in REPORTS else None
    if returned and depth < 2:
        for call, home in kinds.callers(scope):
            used = _find_result(call, home, kinds, depth)
            if used is not None and (used[0] == "decides" or told is None):
                return used
    return told


def _find_result(
    call: ast.Call, scope: Scope, kinds: Kinds, depth: int
) -> tuple[str, str, ast.AST, Scope] | None:
    for statement, _ in kinds.flow(scope).statements:
        if isinstance(statement, ast.Assign) and statement.value is call:
            names = {each.id for t in statement.targets for each in ast.walk(t) if isinstance(each, ast.Name)}
            return _find_use(frozenset(names), statement, scope, kinds, depth + 1)
    return None


def _mentioned(node: ast.AST, names: set[str]) -> str | None:
    return next((each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in names), None)
