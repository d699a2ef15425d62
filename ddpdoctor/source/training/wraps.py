"""Wrapped models: where they are wrapped, and what keeps their gradients equal otherwise."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ddpdoctor.facts.collectives import COLLECTIVES
from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_calls, is_spelled_out, name_last, names_in
from ddpdoctor.source.training.graphs import slice_of

REDUCES = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_gather", "broadcast",
                     "all_reduce_coalesced", "all_gather_into_tensor", "send", "isend", "recv", "irecv",
                     "all_to_all", "average_parameters"})  # fmt: skip
"""Calls by which gradients or parameters are made equal by hand."""
OF_MODELS = frozenset({"grad", "grads", "gradient", "gradients", "param", "params", "parameter", "parameters",
                       "weight", "weights"})  # fmt: skip
"""Words in the names of what is reduced by which it is gradients or parameters."""
NOT_GRADIENTS = re.compile(
    r"no_grad|zero_grad|set_grad_enabled|requires_grad|clip|accum|norm|checkpoint", re.IGNORECASE
)
"""Parts of names that have such a word and are no gradients: settings, switches, their norm."""
DEEPEST = 3
"""Functions outwards from a wrap, or from a change of what is wrapped, among whose callers the rest is looked for."""


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

    def holds(self, value: Value) -> bool:
        """Whether a value may be the wrapper, or what is in it, also where a function that made both gave it back."""
        return any(value.may_be(each) for each in (self.value, *self.value.inner))

    def before(self, node: ast.AST, scope: Scope, kinds: Kinds) -> bool:
        """Whether it has run where a node of a scope runs."""
        if kinds.flow(self.scope).drops(self.value.call):
            return False  # thrown away: it wraps nothing
        return _has_run(self.value.call, self.scope, node, scope, kinds, 0)

    def may_precede(self, node: ast.AST, scope: Scope, kinds: Kinds) -> bool:
        """Whether it has run in some runs in which a node of the same function runs: it stands in an ``if`` before.

        Or in a function that is called before.
        """
        spend()
        flow = kinds.flow(self.scope)
        own = flow.spot(self.value.call)
        if own is None or not own.is_on or flow.drops(self.value.call):
            return False
        if scope is not self.scope:
            return any(
                home is scope and _has_run(call, home, node, scope, kinds, 0)
                for call, home in kinds.callers(self.scope)
            )
        other = flow.spot(node)
        return other is not None and own.number < other.number and not own.excludes(other)


def _has_run(call: ast.Call, home: Scope, node: ast.AST, scope: Scope, kinds: Kinds, depth: int) -> bool:
    """Whether a call of one function has run where a node of another one, or of its own, runs."""
    spend()
    flow = kinds.flow(home)
    own = flow.spot(call)
    if own is None or not own.is_on:
        return False
    if scope is home:
        other = flow.spot(node)
        return other is not None and own.surely_before(other)
    always = all(side == "loop" for _, side in own.blocks)
    if home.name is not None and home.name.endswith("__init__"):
        return always and scope.find_class() is home.find_class()
    spots = [flow.spot(each) for each, above in kinds.callers(scope) if above is home]
    if spots:
        return all(spot is not None and own.surely_before(spot) for spot in spots)
    if always and scope.outer is home and not isinstance(scope.node, ast.ClassDef):
        return True
    return (
        always
        and depth < DEEPEST
        and any(
            _has_run(each, above, node, scope, kinds, depth + 1)
            for each, above in kinds.callers(home)
            if above is not home
        )
    )


@once
def wraps_of(kinds: Kinds) -> list[Wrap]:
    """Return the calls of DistributedDataParallel in all files."""
    wrapping = kinds.programs.scopes_calling(lambda name: name.endswith("DistributedDataParallel"))
    return [
        Wrap(value, scope)
        for module in kinds.files.modules
        for scope in module.walk()
        if scope in wrapping
        for call in find_calls(scope)
        if (kinds.files.dotted(call.func, scope) or "").endswith("DistributedDataParallel")
        for value in kinds.find(call, scope)
        if value.kind == "wrapped"
    ]


def reduces_by_hand(scope: Scope, kinds: Kinds) -> bool:
    """Whether the program may make gradients or parameters equal by itself."""
    return kinds.programs.any_file(scope.module, _reduces_in, kinds)


def carries_no_gradients(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether what a collective gets is followed to its making, and is neither gradients nor parameters.

    Not where a function gets it from callers that are not seen, such as that of a hook; one that nothing names is
    called by nothing.
    """
    row = COLLECTIVES.get(name_last(call.func))
    if row is None or row.given is None or not is_spelled_out(call) or len(call.args) <= row.given:
        return False
    found = slice_of(call.args[row.given], scope, kinds)
    unseen = any(
        name in each.parameters and not kinds.callers(each) and _is_named(each, kinds)
        for name, each in found.names
    )
    return (
        found.complete
        and not (unseen or found.unbound)
        and "state_dict" not in found.words
        and not _speaks_of_gradients(found.words)
    )


def _is_named(function: Scope, kinds: Kinds) -> bool:
    """Whether anything may call a function: a program names it somewhere, or it is a method."""
    if function.find_class() is not None:
        return True
    return any(
        (isinstance(each, ast.Name) and each.id == function.name)
        or (isinstance(each, ast.Attribute) and each.attr == function.name)
        for member in kinds.programs.members(function.module)
        for each in ast.walk(member.node)
    )


def _reduces_in(member: Scope, kinds: Kinds) -> bool:
    for call, home, name in kinds.programs.list_calls(member):
        last = name.rpartition(".")[2] or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
        if last not in REDUCES or not (
            name.startswith("torch.distributed.") or isinstance(call.func, ast.Attribute)
        ):
            continue
        words = {last, *names_in(call)}
        for each in (*call.args, *(keyword.value for keyword in call.keywords)):
            words |= slice_of(each, home, kinds).words
        # A variable of that name is a data set, more often than not.
        if any(
            isinstance(each, ast.Attribute) and each.attr == "data" for each in ast.walk(call)
        ) or _speaks_of_gradients(words):
            return True
    return False


def _speaks_of_gradients(words: set[str]) -> bool:
    return any(
        not NOT_GRADIENTS.search(word) and not OF_MODELS.isdisjoint(word.lower().split("_")) for word in words
    )
