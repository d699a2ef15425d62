"""Loops over the part of the data that a sampler gives a rank, and what they count."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpdoctor.source.resolve.calls import SAMPLERS
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import name_last, names_in, own_nodes
from ddpdoctor.source.sameness.losses import JOINING, LossReader
from ddpdoctor.source.training.train_loops import (
    HOLDERS,
    MODELS,
    Place,
    find_forwards,
    is_backward,
    loaders_of,
    reach,
    samplers_of,
)

SIZES = frozenset({"len", "size", "shape", "numel", "batch_size"})
"""Names of numbers that are about the same on each rank."""
CLOCKS = frozenset({"time", "perf_counter", "monotonic", "elapsed", "process_time"})
"""Names by which what is added up is time."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A loop over the data of one rank that counts something."""

    node: ast.For
    scope: Scope
    trains: bool
    counted: frozenset[str]
    """Variables that are added up."""
    samplers: tuple[Value, ...]
    """What may share out its data; one at least."""


@once
def find_passes(kinds: Kinds) -> tuple[Pass, ...]:
    """Return the loops of all files that train or evaluate over the part that a DistributedSampler gives a rank."""
    return tuple(_find_passes(kinds))


def _find_passes(kinds: Kinds) -> Iterator[Pass]:
    losses = LossReader(kinds.files)
    for module in kinds.files.modules:
        for scope in module.walk() if kinds.programs.mentions(module, "DistributedSampler") else ():
            loops = [each for each in own_nodes(scope.node) if each.__class__ is ast.For]
            for node in loops:
                counted = _find_counted(node)
                spot = kinds.flow(scope).spot(node) if counted else None
                if spot is None or not spot.is_on:
                    continue
                loaders = loaders_of(node.iter, scope, kinds)
                samplers = tuple(one for each in loaders for one in samplers_of(each, kinds))
                if not samplers or any(each.name not in SAMPLERS for each in samplers):
                    continue
                calls = list(reach(node.body, scope, kinds))
                if not _runs_model(calls, kinds):
                    continue
                trains = any(is_backward(call) for call, _ in calls)
                own = set(losses.find(scope)) if trains else None
                names = [
                    name for name, value in counted if own is None or find_mentioned(value, own) is not None
                ]
                if names:
                    yield Pass(node, scope, trains, frozenset(names), samplers)


def _runs_model(calls: Sequence[Place], kinds: Kinds) -> bool:
    """Whether calls run a model, or hand one that may be wrapped to what was not read."""
    return any(find_forwards(calls, kinds)) or any(
        each.kind in MODELS
        for call, scope in calls
        if kinds.called(call, scope) is None
        for given in (*call.args, *(keyword.value for keyword in call.keywords))
        if isinstance(given, HOLDERS)
        for each in kinds.find(given, scope)
    )


def _find_counted(loop: ast.For) -> list[tuple[str, ast.expr]]:
    """Return what is added up in a loop, and what is added: numbers of batches and samples decide nothing."""
    return [
        (name, value)
        for each in own_nodes(loop)
        for name, value in _list_added(each)
        if not _is_size(value) and CLOCKS.isdisjoint(names_in(value))
    ]


def _list_added(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield to what a node adds which value: ``total += x``, ``sums[0] += x``, ``values.append(x)``."""
    if isinstance(node, ast.AugAssign):
        target = node.target.value if isinstance(node.target, ast.Subscript) else node.target
        if isinstance(target, ast.Name):
            yield target.id, node.value
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "append"
        and isinstance(node.func.value, ast.Name)
        and len(node.args) == 1
    ):
        yield node.func.value.id, node.args[0]


def _is_size(node: ast.expr) -> bool:
    """Whether a value is a number of batches or samples and nothing else."""
    if isinstance(node, ast.BinOp):
        return _is_size(node.left) and _is_size(node.right)
    if isinstance(node, ast.Subscript):
        return _is_size(node.value)
    return (
        isinstance(node, ast.Constant)
        or name_last(node.func if isinstance(node, ast.Call) else node) in SIZES
    )


def joins_results(module: Scope, kinds: Kinds) -> bool:
    """Whether anything in a program makes one result of several, by its name."""
    return kinds.programs.any_file(module, _has_joining)


def _has_joining(member: Scope) -> bool:
    imports = (name for scope in member.walk() for name in scope.imports.values())
    return any(JOINING.search(name) for name in itertools.chain(names_in(member.node), imports))


def find_mentioned(node: ast.AST, names: set[str]) -> str | None:
    """Return the first of some variables that stands in a node."""
    return next((each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in names), None)
