"""Wrapped models: where they are wrapped, and what keeps their gradients equal otherwise."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.resolve.kinds import Kinds, Value
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.walking import find_calls, names_in
from ddpdoctor.source.training.graphs import slice_of

REDUCES = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_gather", "broadcast",
                     "all_reduce_coalesced", "all_gather_into_tensor", "send", "isend", "recv", "irecv",
                     "all_to_all", "average_parameters"})  # fmt: skip
"""Calls by which gradients or parameters are made equal by hand."""
OF_MODELS = frozenset({"grad", "grads", "gradient", "gradients", "param", "params", "parameter", "parameters",
                       "weight", "weights", "data"})  # fmt: skip
"""Words in the names of what is reduced by which it is gradients or parameters."""
NOT_GRADIENTS = frozenset({"no_grad", "zero_grad", "set_grad_enabled", "requires_grad", "clip_grad_norm_"})
_WRAPS: WeakKeyDictionary[Kinds, list[Wrap]] = WeakKeyDictionary()


def is_certain(node: ast.AST, scope: Scope, kinds: Kinds) -> bool:
    """Whether a statement stands below no test, in its own function."""
    spot = kinds.flow(scope).spot(node)
    return spot is not None and all(side == "loop" for _, side in spot.blocks)


def goes_through_module(node: ast.AST, scope: Scope, kinds: Kinds) -> bool:
    """Whether an expression goes through ``.module`` of what is a wrapper there, whichever way a run takes."""
    return any(
        isinstance(each, ast.Attribute)
        and each.attr == "module"
        and bool(kinds.all_of(each.value, scope, "wrapped"))
        for each in ast.walk(node)
    )


@dataclass(frozen=True, slots=True)
class Wrap:
    """A call that wraps a model."""

    value: Value
    scope: Scope

    def before(self, node: ast.AST, scope: Scope, kinds: Kinds) -> bool:
        """Whether it has run where a node of a scope runs."""
        spend()
        flow = kinds.flow(self.scope)
        own = flow.spot(self.value.call)
        if flow.drops(self.value.call):
            return False  # thrown away: it wraps nothing
        if own is None or not own.is_on:
            return False
        if scope is self.scope:
            other = flow.spot(node)
            return other is not None and own.surely_before(other)
        always = all(side == "loop" for _, side in own.blocks)
        inside = always and scope.outer is self.scope and not isinstance(scope.node, ast.ClassDef)
        if self.scope.name is not None and self.scope.name.endswith("__init__"):
            return always and scope.find_class() is self.scope.find_class()
        calls = [call for call, home in kinds.callers(scope) if home is self.scope]
        spots = [flow.spot(call) for call in calls]
        return inside if not spots else all(spot is not None and own.surely_before(spot) for spot in spots)

    def may_precede(self, node: ast.AST, scope: Scope, kinds: Kinds) -> bool:
        """Whether it has run in some runs in which a node of the same function runs: it stands in an ``if`` before."""
        spend()
        flow = kinds.flow(self.scope)
        own, other = flow.spot(self.value.call), flow.spot(node)
        if scope is not self.scope or own is None or other is None or flow.drops(self.value.call):
            return False
        return own.is_on and own.number < other.number and not own.excludes(other)


def wraps_of(kinds: Kinds) -> list[Wrap]:
    """Return the calls of DistributedDataParallel in all files."""
    if kinds not in _WRAPS:
        _WRAPS[kinds] = [
            Wrap(value, scope)
            for module in kinds.files.modules
            for scope in module.walk()
            for call in find_calls(scope)
            if (kinds.files.dotted(call.func, scope) or "").endswith("DistributedDataParallel")
            for value in kinds.find(call, scope)
            if value.kind == "wrapped"
        ]
    return _WRAPS[kinds]


def reduces_by_hand(scope: Scope, kinds: Kinds) -> bool:
    """Whether the program may make gradients or parameters equal by itself."""
    module = scope.module
    for call, home, name in kinds.programs.calls(module):
        last = name.rpartition(".")[2] or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
        if last not in REDUCES or not (
            name.startswith("torch.distributed.") or isinstance(call.func, ast.Attribute)
        ):
            continue
        words = {last, *names_in(call)}
        for each in (*call.args, *(keyword.value for keyword in call.keywords)):
            words |= slice_of(each, home, kinds).words
        if any(
            word not in NOT_GRADIENTS and not OF_MODELS.isdisjoint(word.lower().split("_")) for word in words
        ):
            return True
    return False
