"""Models that Accelerate prepares: which of them it wraps in DistributedDataParallel."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, names_in
from ddpdoctor.source.training.freezing import read_switch
from ddpdoctor.source.training.wraps import Wrap

ACCELERATE = "accelerate.Accelerator"
ACCELERATES = "ccelerat"
"""Part of each line that names the package, or its class."""
METHODS = frozenset({"prepare", "prepare_model"})
PLAIN = frozenset(
    {"torch", "numpy", "math", "int", "float", "str", "len", "list", "tuple", "dict", "set", "max", "min"}
)
"""What makes no layers."""
DEEPEST = 4
"""Modules that are followed into one another."""
OTHER_WAYS = re.compile(r"deepspeed|fsdp|fully_?shard|megatron", re.IGNORECASE)
"""What else a launch of Accelerate can make of a model: objects that ask it for what they have not."""


def is_wrapped_by_accelerate(value: Value, kinds: Kinds) -> bool:
    """Whether several ranks get a model in DistributedDataParallel: one of Accelerate's, some of which is trained.

    ``prepare`` wraps no model without parameters to train, and Fabric's objects ask the model for what they have not.
    """
    call, scope = value.made, value.scope
    if value.kind != "prepared model" or not isinstance(call, ast.Call) or scope is None:
        return False
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in METHODS:
        return False
    owners = kinds.find(call.func.value, scope)
    return (
        bool(owners)
        and all(each.name == ACCELERATE for each in owners)
        and find_keyword(call, "evaluation_mode") is None
        and not any({each.identity, each.owner} & (_frozen_of(kinds) - {None}) for each in _models_of(value))
        and not any(each.owner is not None and _is_bare(each.owner, kinds) for each in _models_of(value))
    )


def _is_bare(owner: Scope, kinds: Kinds, depth: int = 0) -> bool:
    """Whether a class of models has no parameters: it keeps numbers and tensors alone, and others of the kind."""
    files = kinds.files
    family = list(files.objects.bases(owner))
    if depth > DEEPEST or any(
        files.find_class(base, each.outer or each) is None
        and files.dotted(base, each.outer or each) != "torch.nn.Module"
        for each in family
        for base in getattr(each.node, "bases", ())
    ):
        return False
    for each in family:
        if any("arameter" in name for name in names_in(each.node)):
            return False
        for value in (value for values in each.attributes.values() for value in values):
            if not isinstance(value, ast.Call):
                continue
            home = each.makers.get(value, each)
            made = files.find_class(value.func, home)
            name = files.dotted(value.func, home) or ""
            if not _is_bare(made, kinds, depth + 1) if made is not None else not _is_plain(name):
                return False
    return True


def _is_plain(name: str) -> bool:
    """Whether a function makes a number, a tensor or a list."""
    return name.split(".")[0] in PLAIN and not name.startswith(("torch.nn.", "torch.hub."))


@once
def prepares_of(kinds: Kinds) -> list[Wrap]:
    """Return the calls of Accelerate in all files that wrap a model, as those of DistributedDataParallel."""
    return [
        Wrap(value, scope)
        for module in kinds.files.modules
        if ACCELERATES in module.script.text
        for scope in module.walk()
        for call in find_calls(scope)
        if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS
        for value in _list_prepared(call, scope, kinds)
        if is_wrapped_by_accelerate(value, kinds)
    ]


def _list_prepared(call: ast.Call, scope: Scope, kinds: Kinds) -> Iterator[Value]:
    """Yield what a call gives back for each of the objects that it is given."""
    for place in range(len(call.args)):
        yield from kinds.find(call, scope, None if len(call.args) == 1 else place)


def may_be_of_others(scope: Scope, kinds: Kinds) -> bool:
    """Whether a program speaks of DeepSpeed or of sharded models, as which it may be started instead."""
    return kinds.programs.any_file(scope.module, _speaks_of_others)


def _speaks_of_others(member: Scope) -> bool:
    return any(map(OTHER_WAYS.search, member.script.lines))


def _models_of(value: Value) -> tuple[Value, ...]:
    return tuple(each for inner in value.inner for each in (inner, *inner.inner))


@once
def _frozen_of(kinds: Kinds) -> frozenset[object]:
    """Return the models of which some statement freezes all, and the classes of which a method does."""
    found: set[object] = set()
    for module in kinds.files.modules:
        if "requires_grad" not in module.script.text:
            continue
        for scope in module.walk():
            if isinstance(scope.node, ast.ClassDef):
                continue
            for statement, _ in kinds.flow(scope).statements:
                part, trains = read_switch(statement, scope, kinds) or (None, True)
                if part is None or trains:
                    continue
                if isinstance(part, ast.Name) and part.id == "self":
                    found.add(scope.find_class())
                found.update(each.identity for each in kinds.find(part, scope) if each.made is not None)
    return frozenset(found)
