"""Rules of when gradients are reduced: no_sync, accumulation, and models that nothing reduces."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.graphs import loss_of, slice_of
from ddpdoctor.source.kinds import Kinds, Value, kinds_of
from ddpdoctor.source.known import KNOWN_ROOTS
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.programs import ALL_JOINS
from ddpdoctor.source.rules.models import reduces_by_hand, wraps_of
from ddpdoctor.source.steps import (
    TrainingLoop,
    enclosing_loops,
    find_backwards,
    is_backward,
    reach,
    training_loops,
)
from ddpdoctor.source.walking import names_in

SWITCHES = frozenset({"no_sync", "require_backward_grad_sync", "accumulate", "gradient_accumulation_steps",
                      "set_requires_gradient_sync"})  # fmt: skip
"""Names by which a program says when gradients are reduced."""
QUIET = frozenset({"init_process_group", "destroy_process_group", "get_rank", "get_world_size", "barrier",
                   "is_initialized", "is_available", "is_nccl_available", "is_gloo_available", "get_backend",
                   "is_torchelastic_launched", "get_node_local_rank", "monitored_barrier",
                   "get_default_backend_for_device"})  # fmt: skip
"""Functions of torch.distributed that reduce nothing."""
MANAGERS = ("distributeddataparallel", "ddp", "fsdp", "fully", "sharded", "deepspeed", "horovod", "apex", "accelerate",
            "lightning", "fabric", "fairscale", "megatron", "parallelize", "replicate", "distribute_",
            "tensor.parallel", "ignite", "composer", "colossal", "averaging", "averager", "rpc", "pipelin",
            "dataparallel")  # fmt: skip
"""Parts of the names of what else trains a model over several ranks."""
OF_GRADIENTS = frozenset(
    {"grad", "grads", "gradients", "parameters", "named_parameters", "param_groups", "params"}
)
"""Names by which a model's gradients or parameters are given."""


def find_unenclosed(files: Files) -> Iterator[SourceFact]:
    """Yield ``no_sync`` around a backward whose forward was before it (``no-sync-without-forward``).

    model: how it is called.
    """
    kinds = kinds_of(files)
    scopes = [*(loop.scope for loop in training_loops(kinds)), *find_backwards(kinds).values()]
    for scope in dict.fromkeys(scopes):
        for statement, spot in kinds.flow(scope).statements:
            if not isinstance(statement, ast.With) or not spot.is_on:
                continue
            model = _unsynchronised(statement, scope, kinds)
            if model is None:
                continue
            calls = list(reach(statement.body, scope, kinds))
            if any(_runs(call, home, model, kinds) for call, home in calls):
                continue
            for call, home in calls:
                loss = loss_of(call) if is_backward(call) else None
                behind = slice_of(loss, home, kinds) if loss is not None else None
                forwards = (
                    [one for one in behind.calls if _runs(*one, model, kinds)] if behind is not None else []
                )
                if forwards and not any(_is_unsynchronised(*one, kinds) for one in forwards):
                    forward, there = forwards[0]
                    noticed = RelatedPlace("noticed", there.place(forward))
                    place = scope.place(statement)
                    yield SourceFact(
                        "no-sync-without-forward", place, (noticed,), {"model": ast.unparse(forward.func)}
                    )
                    break


def _unsynchronised(statement: ast.With, scope: Scope, kinds: Kinds) -> tuple[Value, ...] | None:
    """Return the wrapped model of whose ``no_sync`` a ``with`` is; None for every other."""
    for item in statement.items:
        for each in _contexts(item.context_expr, scope, kinds):
            func = each.func if isinstance(each, ast.Call) else each
            if isinstance(func, ast.Attribute) and func.attr == "no_sync":
                return kinds.all_of(func.value, scope, "wrapped") or None
    return None


def _contexts(node: ast.expr, scope: Scope, kinds: Kinds) -> Iterator[ast.expr]:
    """Yield what a context manager may be: both sides of a choice, and what a name is bound to."""
    if isinstance(node, ast.IfExp):
        yield from _contexts(node.body, scope, kinds)
        yield from _contexts(node.orelse, scope, kinds)
        return
    yield node
    name = node.func if isinstance(node, ast.Call) else node
    if isinstance(name, ast.Name):
        spot = kinds.flow(scope).spot(name)
        for each in kinds.flow(scope).holding(name.id, spot) or () if spot is not None else ():
            if each.value is not None and each.kind == "assign":
                yield from _contexts(each.value, scope, kinds)


def _runs(call: ast.Call, scope: Scope, model: tuple[Value, ...], kinds: Kinds) -> bool:
    """Whether a call is a forward of a model, or may be: where the model is given to what is not among the files."""
    own = {each.identity for each in model}
    found = kinds.find(call.func, scope) if isinstance(call.func, (ast.Name, ast.Attribute)) else ()
    if any(each.identity in own for each in found):
        return True
    if kinds.files.function(call.func, scope) is not None:
        return False
    given = [*call.args, *(each.value for each in call.keywords)]
    return any(each.identity in own for node in given for each in kinds.find(node, scope))


def _is_unsynchronised(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether a call stands below a ``no_sync`` in its function, or in one that is called below one."""
    for statement, _ in kinds.flow(scope).statements:
        if (
            isinstance(statement, ast.With)
            and any(each is call for each in ast.walk(statement))
            and any("no_sync" in names_in(item.context_expr) for item in statement.items)
        ):
            return True
    return False


def find_redundant(files: Files) -> Iterator[SourceFact]:
    """Yield backwards that accumulate gradients and reduce them each time (``accumulation-reduced``).

    count: its text. known: there where the script spells out that it is above one.
    """
    kinds = kinds_of(files)
    for loop in training_loops(kinds):
        if (
            not loop.wrapped
            or not isinstance(loop.node, (ast.For, ast.AsyncFor))
            or _speaks_of_switch(loop, kinds)
        ):
            continue
        test = _find_interval(loop, kinds) or _find_inner(loop, kinds)
        if test is None:
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
    module = loop.scope.module
    return any(not SWITCHES.isdisjoint(names_in(each.node)) for each in kinds.programs.members(module))


def _find_interval(loop: TrainingLoop, kinds: Kinds) -> ast.expr | None:
    """Return ``n`` of the ``if (i + 1) % n == 0:`` below which alone the optimizer steps; None where there is none."""
    for statement in loop.node.body:
        if not isinstance(statement, ast.If) or statement.orelse:
            continue
        steps = [
            each for inner in statement.body for each in ast.walk(inner) if _is_step(each, loop.scope, kinds)
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
            and not any(_is_step(each, loop.scope, kinds) for each in outside)
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
    if not around or any(_is_step(call, home, kinds) for call, home in loop.calls):
        return None
    if sum(map(is_backward, _own_calls(loop))) != 1:
        return None
    body = getattr(around[0], "body", [])
    later = body[body.index(loop.node) + 1 :] if loop.node in body else []
    steps = [each for statement in later for each in ast.walk(statement) if _is_step(each, loop.scope, kinds)]
    others = [each for each in body if each is not loop.node]
    alone = not any(isinstance(n, ast.Call) and is_backward(n) for each in others for n in ast.walk(each))
    return loop.node.iter if steps and alone else None


def _is_step(node: ast.AST, scope: Scope, kinds: Kinds) -> bool:
    """Whether it is ``optimizer.step()`` or ``scaler.step(optimizer)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return False
    found = kinds.find(node.func.value, scope)
    return any(each.kind in ("optimizer", "scaler") for each in found)


def _value_of(node: ast.expr, scope: Scope, kinds: Kinds) -> int | None:
    """Return the number that a name stands for, where it is bound once to a constant."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    found = scope.lookup(node.id) if isinstance(node, ast.Name) else None
    if found is None or len(found[1]) != 1 or not isinstance(found[1][0], ast.Constant):
        return None
    return _value_of(found[1][0], found[0], kinds)


def find_unwrapped(files: Files) -> Iterator[SourceFact]:
    """Yield steps of an optimizer in a program of several ranks in which nothing reduces gradients (``unwrapped``).

    way: ``never`` or ``thrown away`` (a wrapper is made and not kept). model: its class. Only programs
    whose training data a DistributedSampler cuts up: others may train a model on each rank on purpose.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        module = loop.scope.module
        values = {v.identity: v for forward in loop.forwards for v in forward.values}
        if not values or any(each.kind != "model" for each in values.values()):
            continue
        steps = [(call, home) for call, home in loop.calls if _is_step(call, home, kinds)]
        if not steps or steps[0][0] in told or not _is_one_training(loop, module, kinds):
            continue
        thrown = _find_thrown_away(kinds.programs.members(module), kinds)
        if any(
            not _is_harmless(call, home, name, kinds, thrown)
            for call, home, name in kinds.programs.calls(module)
        ):
            continue
        if reduces_by_hand(loop.scope, kinds) or _imports_managers(module, kinds, bool(thrown)):
            continue
        call, home = steps[0]
        told.add(call)
        model = next(iter(values.values()))
        name = model.owner.name if model.owner is not None else model.name.rpartition(".")[2]
        way = "thrown away" if thrown else "never"
        places = [RelatedPlace("noticed", s.place(one)) for one, s in thrown]
        details = {"way": way, "model": name or ""}
        yield SourceFact("unwrapped", home.place(call), tuple(places), details)


def _find_thrown_away(members: Iterable[Scope], kinds: Kinds) -> list[tuple[ast.Call, Scope]]:
    """Return the calls of a program that wrap a model and keep no wrapper."""
    scripts = [each.script for each in members]
    return [
        (wrap.value.call, wrap.scope)
        for wrap in wraps_of(kinds)
        if wrap.scope.script in scripts
        for each, _ in kinds.flow(wrap.scope).statements
        if isinstance(each, ast.Expr) and each.value is wrap.value.call
    ]


def _is_one_training(loop: TrainingLoop, module: Scope, kinds: Kinds) -> bool:
    """Whether ranks are seen to train one model: they join a group, and a DistributedSampler cuts up their data."""
    names = {name for _, _, name in kinds.programs.calls(module)}
    samples = any(name.endswith(".DistributedSampler") for name in names)
    return samples and not ALL_JOINS.isdisjoint(names) and kinds.programs.is_distributed(module)


def _is_harmless(
    call: ast.Call, scope: Scope, name: str, kinds: Kinds, thrown: Iterable[tuple[ast.Call, Scope]]
) -> bool:
    """Whether a call can have no part in making gradients or parameters equal."""
    if any(call is each for each, _ in thrown):
        return True
    if kinds.files.function(call.func, scope) is not None:
        return True
    last = name.rpartition(".")[2]
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method.startswith("register_") and "hook" in method:
        return all(kinds.files.function(each, scope) is not None for each in call.args)
    if name.startswith("torch.distributed."):
        return last in QUIET
    if any(word in name.lower() for word in MANAGERS):
        return False
    if name.split(".")[0] in KNOWN_ROOTS:
        return True
    given = [*call.args, *(each.value for each in call.keywords)]
    if kinds.files.find_class(call.func, scope) is not None or not given:
        return True
    if isinstance(call.func, ast.Attribute) and any(
        each.kind in ("model", "optimizer", "loss", "scaler", "scheduler")
        for each in kinds.find(call.func.value, scope)
    ):
        return True
    if any(not OF_GRADIENTS.isdisjoint(names_in(each)) for each in given):
        return False  # a function that was not given may reduce them
    return not any(each.kind in ("model", "optimizer") for node in given for each in kinds.find(node, scope))


def _imports_managers(module: Scope, kinds: Kinds, wraps: bool) -> bool:
    """Whether a program imports what else trains over ranks; a wrapper may be imported where one is thrown away."""
    for member in kinds.programs.members(module):
        for scope in member.walk():
            for name in scope.imports.values():
                if wraps and name.endswith("DistributedDataParallel"):
                    continue
                if any(word in name.lower() for word in MANAGERS):
                    return True
    return False
