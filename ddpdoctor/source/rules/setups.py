"""Rules of how a training is set up: devices of the wrapper, BatchNorm, checkpointing, and the end of the group."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.kinds import Kinds, Value, kinds_of
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.norms import has_norms
from ddpdoctor.source.programs import ALL_JOINS
from ddpdoctor.source.rules.models import is_certain, wraps_of
from ddpdoctor.source.steps import loaders_of, training_loops
from ddpdoctor.source.walking import find_calls, find_keyword, is_spelled_out, names_in, own_nodes

FEW_SAMPLES = 8
"""A batch of fewer on each rank is small for BatchNorm; the same number as in a live run."""
DEVICES = ("cuda", "gpu", "xpu", "npu", "hpu", "mps", "device", "accelerator", "to_empty")
"""Parts of names and texts by which a program speaks of what is not the CPU."""
CHECKPOINT = frozenset({"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"})


def find_small_batches(files: Files) -> Iterator[SourceFact]:
    """Yield wrapped models with BatchNorm that are trained on few samples on each rank (``batch-norm-small``).

    size: of the batch.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or not loop.wrapped:
            continue
        module = loop.scope.module
        sizes = [_batch_size(each) for each in loaders_of(loop.node.iter, loop.scope, kinds)]
        small = [size for size in sizes if size is not None and size < FEW_SAMPLES]
        if not small or len(small) != len(sizes) or _speaks_of_sync(module, kinds):
            continue
        for value in (each for forward in loop.wrapped for each in forward.values):
            if (
                value.call in told
                or value.scope is None
                or not value.inner
                or not all(map(has_norms, value.inner))
            ):
                continue
            told.add(value.call)
            noticed = RelatedPlace("noticed", loop.scope.place(loop.node))
            place = value.scope.place(value.call)
            yield SourceFact("batch-norm-small", place, (noticed,), {"size": str(max(small))})


def _batch_size(loader: Value) -> int | None:
    """Return the batch size of a loader where the script spells it out."""
    size = find_keyword(loader.call, "batch_size", 1)
    if isinstance(size, ast.Name) and loader.scope is not None:
        found = loader.scope.lookup(size.id)
        size = found[1][0] if found is not None and len(found[1]) == 1 else None
    return size.value if isinstance(size, ast.Constant) and type(size.value) is int else None


def _speaks_of_sync(module: Scope, kinds: Kinds) -> bool:
    words = ("syncbatchnorm", "sync_batchnorm", "syncbn", "sync_bn", "eval_bn", "freeze_bn")
    return any(
        word in name.lower()
        for member in kinds.programs.members(module)
        for name in names_in(member.node)
        for word in words
    )


def find_device_ids(files: Files) -> Iterator[SourceFact]:
    """Yield wrappers whose ``device_ids`` cannot be (``device-ids``).

    way: ``several``, or ``nowhere`` where the program moves nothing to a device.
    """
    kinds = kinds_of(files)
    for wrap in wraps_of(kinds):
        call, scope = wrap.value.call, wrap.scope
        devices = find_keyword(call, "device_ids", 1)
        if not isinstance(devices, ast.List) or any(isinstance(each, ast.Starred) for each in devices.elts):
            continue
        module = scope.module
        if len(devices.elts) > 1:
            way = "several"
        elif (
            devices.elts
            and all(each.kind == "model" for each in wrap.value.inner)
            and not _moves(module, kinds)
        ):
            way = "nowhere"
        else:
            continue
        yield SourceFact("device-ids", scope.place(call), details={"way": way})


def _moves(module: Scope, kinds: Kinds) -> bool:
    """Whether a program speaks of any device but the CPU."""
    for member in kinds.programs.members(module):
        for node in ast.walk(member.node):
            if isinstance(node, ast.Name):
                words = [node.id]
            elif isinstance(node, ast.Attribute):
                if node.attr == "to":
                    return True
                words = [node.attr]
            elif isinstance(node, ast.keyword):
                words = [node.arg or ""] if node.arg != "device_ids" else []
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = [node.value]
            else:
                continue
            if any(part in word.lower() for word in words for part in DEVICES):
                return True
        if any(name.startswith(".") for scope in member.walk() for name in scope.imports.values()):
            return True  # of files that may not have been given
    return False


def find_reentrant(files: Files) -> Iterator[SourceFact]:
    """Yield reentrant checkpointing under a wrapper that searches for unused parameters (``reentrant-checkpoint``).

    way: ``said`` where the call asks for it, else ``default``.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for wrap in wraps_of(kinds):
        search, static = (
            find_keyword(wrap.value.call, name) for name in ("find_unused_parameters", "static_graph")
        )
        on = isinstance(search, ast.Constant) and search.value is True
        if not on or static is not None:
            continue
        owners = {each.owner for each in wrap.value.inner if each.owner is not None}
        for owner in owners:
            for scope in owner.walk():
                for call in find_calls(scope):
                    way = _reentrant_way(call, scope, files)
                    if way is not None and call not in told and not _is_static(wrap.scope.module, kinds):
                        told.add(call)
                        noticed = RelatedPlace("noticed", wrap.scope.place(wrap.value.call))
                        place = scope.place(call)
                        chosen = any(
                            isinstance(each, (ast.IfExp, ast.BoolOp)) and call in ast.walk(each)
                            for each in own_nodes(scope.node)
                        )
                        certain = is_certain(call, scope, kinds) and not chosen
                        yield SourceFact(
                            "reentrant-checkpoint", place, (noticed,), {"way": way}, certain=certain
                        )


def _is_static(module: Scope, kinds: Kinds) -> bool:
    """Whether a program says by a method that the graph is the same in each step."""
    return any("_set_static_graph" in names_in(each.node) for each in kinds.programs.members(module))


def _reentrant_way(call: ast.Call, scope: Scope, files: Files) -> str | None:
    if files.dotted(call.func, scope) not in CHECKPOINT or any(each.arg is None for each in call.keywords):
        return None
    way = find_keyword(call, "use_reentrant")
    if way is None:
        return "default"
    return "said" if isinstance(way, ast.Constant) and way.value is True else None


def find_undestroyed(files: Files) -> Iterator[SourceFact]:
    """Yield groups of NCCL in scripts that never destroy them (``group-left``).

    Only scripts are looked at that are seen to train a wrapped model: others may be a part of more.
    """
    kinds = kinds_of(files)
    training = {loop.scope.script.name for loop in training_loops(kinds) if loop.wrapped}
    for module in files.modules:
        joins = [
            (call, scope)
            for scope in module.walk()
            for call in find_calls(scope)
            if _is_nccl(call, scope, files)
        ]
        if not joins or not _is_script(module):
            continue
        members = kinds.programs.members(module)
        if not any(each.script.name in training for each in members):
            continue
        words = {name for member in members for name in names_in(member.node)}
        if not any("destroy" in word or "cleanup" in word or "shutdown" in word for word in words):
            yield from (SourceFact("group-left", scope.place(call)) for call, scope in joins)


def _is_nccl(call: ast.Call, scope: Scope, files: Files) -> bool:
    """Whether a call makes a group that is spelled out to be NCCL's."""
    if files.dotted(call.func, scope) not in ALL_JOINS or not is_spelled_out(call):
        return False
    backend = find_keyword(call, "backend", 0)
    return isinstance(backend, ast.Constant) and backend.value == "nccl"


def _is_script(module: Scope) -> bool:
    """Whether a module does something when it is run: calls of its own functions at its end, or a main guard."""
    for statement in getattr(module.node, "body", ()):
        if isinstance(statement, ast.If) and "__name__" in set(names_in(statement.test)):
            return True
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            func = statement.value.func
            if isinstance(func, ast.Name) and func.id in module.functions:
                return True
    return False
