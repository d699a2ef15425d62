"""DDP014: an attribute of the model is asked of the wrapper, which has none of that name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import WRAPPERS
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import TRIES, find_argument, find_calls, name_last, own_nodes
from ddpdoctor.source.training.prepared import (
    ACCELERATES,
    METHODS,
    is_wrapped_by_accelerate,
    may_be_of_others,
)
from ddpdoctor.source.training.wrapper_ways import ASKS, find_some_way, may_come_before
from ddpdoctor.source.training.wraps import is_certain, wraps_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question

OF_WRAPPER = frozenset("""
    T_destination add_module apply bfloat16 broadcast_bucket_size broadcast_buffers bucket_bytes_cap buffer_hook
    buffers call_super_init children compile cpu cuda device device_ids device_mesh device_type dim double
    dump_patches eval extra_repr find_unused_parameters float forward gather get_buffer get_extra_state
    get_parameter get_submodule gradient_as_bucket_view half ipu is_multi_device_module join join_device
    join_hook join_process_group load_state_dict logger mixed_precision module modules modules_buffers mtia
    named_buffers named_children named_module_buffers named_modules named_parameters no_sync output_device
    parameters parameters_to_ignore process_group reducer register_module register_parameter register_buffer
    require_backward_grad_sync require_forward_param_sync requires_grad_ scatter set_extra_state set_submodule
    share_memory skip_all_reduce_unused_params state_dict static_graph to to_empty to_kwargs train training type
    use_side_stream_for_tensor_copies will_sync_module_buffers xpu zero_grad
    """.split())  # fmt: skip
"""What DistributedDataParallel of torch 2.13 has of its own; hooks are told by their names."""
OF_ENGINES = frozenset("""
    backward get_lr global_rank global_steps gradient_accumulation_steps is_gradient_accumulation_boundary
    load_checkpoint lr_scheduler optimizer save_16bit_model save_checkpoint save_fp16_model step train_batch_size
    train_micro_batch_size_per_gpu
    """.split())  # fmt: skip
"""What DeepSpeed's engine has (deepspeed.readthedocs.io): a program that asks for it means a model of that."""
WRAPPED = ("wrapped", "prepared model")
WRAPPER = "DistributedDataParallel"
"""Whatever it is imported as, some line says so."""
STEPS = 2
"""Calls over which the names of wrappers are followed from where they are bound."""
GIVES = frozenset({ast.Call, ast.Lambda})
"""Nodes by which an object may be given an attribute, beside an assignment to that."""


@lint_rule("attribute-on-wrapper", reads="files")
def find_attributes_on_wrappers(files: Files) -> Iterator[SourceFact]:
    """Yield where an attribute is asked of a wrapper that only the model in it has (``attribute-on-wrapper``).

    owner: the expression. attribute: its name. model: the class, empty where it stands in no file. way: ``wrapped``,
    ``prepared`` (by Accelerate), or ``others`` (which may make another wrapper of it). Nothing in a choice or below a
    test that may ask what it is, or whether there are several ranks; nothing where any file sets an attribute of that
    name on an object.
    """
    if not any(word in module.script.text for module in files.modules for word in (WRAPPER, ACCELERATES)):
        return
    kinds = kinds_of(files)
    bound = _find_bound(kinds)
    if not bound:
        return
    scopes = [scope for module in files.modules for scope in module.walk()]
    given = {
        name
        for scope in scopes
        for each in own_nodes(scope.node)
        if each.__class__ in GIVES or (each.__class__ is ast.Attribute and each.ctx.__class__ is ast.Store)
        for name in _list_given(each)
    }
    if "__getattr__" in given or _sets_by_name(kinds):
        return
    names = _name_holders(bound, kinds)
    owners = {inner.owner for wrap in wraps_of(kinds) for inner in wrap.value.inner} - {None}
    named = {name for each in owners if each is not None for name in (*each.attributes, *each.functions)}
    for scope in scopes:
        asked = [
            each
            for each in own_nodes(scope.node)
            if isinstance(each, ast.Attribute)
            and _may_miss(each, scope, names, named)
            and each.attr not in given
        ]
        choices = {id(each) for node in (own_nodes(scope.node) if asked else ())
                   if isinstance(node, (ast.IfExp, ast.BoolOp)) for each in ast.walk(node)}  # fmt: skip
        for node in asked:
            if id(node) not in choices:
                yield from _judge(node, scope, kinds)


def _judge(node: ast.Attribute, scope: Scope, kinds: Kinds) -> Iterator[SourceFact]:
    """Yield the fact of one attribute, where it is asked of a wrapper."""
    wrapper, always = _find_wrapper(node, scope, kinds)
    if wrapper is None or wrapper.scope is None or _is_caught(node, scope) or _is_denied(node, scope, kinds):
        return
    elsewhere = isinstance(node.value, ast.Attribute) and wrapper.scope is not scope
    if elsewhere and may_come_before(scope, wrapper, kinds):
        return
    certain = always and wrapper.kind == "wrapped" and is_certain(node, scope, kinds)
    if not certain and not _is_meant(node, wrapper, scope, kinds):
        return
    other = wrapper.kind == "prepared model" and may_be_of_others(scope, kinds)
    details = {
        "owner": ast.unparse(node.value),
        "attribute": node.attr,
        "model": next(iter(_name_owners(wrapper, node.attr, kinds)), ""),
        "way": "others"
        if other
        else "prepared"
        if wrapper.kind != "wrapped"
        else "wrapped"
        if always
        else "some",
    }
    noticed = RelatedPlace("noticed", wrapper.scope.place(wrapper.call))
    yield SourceFact("attribute-on-wrapper", scope.place(node), (noticed,), details, certain=certain)


def _find_bound(kinds: Kinds) -> list[tuple[ast.Call, Scope]]:
    """Return the calls that give wrappers."""
    prepared = [
        (call, scope)
        for module in kinds.files.modules
        if ACCELERATES in module.script.text
        for scope in module.walk()
        for call in find_calls(scope)
        if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS
    ]
    return [(wrap.value.call, wrap.scope) for wrap in wraps_of(kinds)] + prepared


def _name_holders(bound: list[tuple[ast.Call, Scope]], kinds: Kinds) -> dict[str, set[Scope]]:
    """Return the last names of what holds wrappers: variables, and parameters of functions that get those.

    Each with the modules in which it may: where it is bound, and those that import that. Where a function has a call
    that gives a wrapper, it may return it.
    """
    calls = [*bound, *(each for _, scope in bound for each in kinds.callers(scope))]
    known = {call for call, _ in calls}
    names: dict[str, set[Scope]] = {}
    added: set[tuple[str, Scope]] = set()

    def add(name: str, module: Scope) -> None:
        if (name, module) not in added:
            added.add((name, module))
            names.setdefault(name, set()).update(kinds.programs.with_importers(module))

    for scope in dict.fromkeys(scope for _, scope in calls):
        for node in own_nodes(scope.node):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(each in known for each in ast.walk(node.value)):
                    for name in {name_last(each) for target in targets for each in ast.walk(target)} - {""}:
                        add(name, scope.module)
    for _ in range(STEPS):
        for module in kinds.files.modules:
            for call, scope, _ in kinds.programs.list_calls(module):
                given = [*call.args, *(each.value for each in call.keywords)]
                called = (
                    kinds.called(call, scope)
                    if any(_gives(each, module, names, known) for each in given)
                    else None
                )
                for name in called.parameters if called is not None else ():
                    each = find_argument(call, called, name) if called is not None else None
                    if called is not None and each is not None and _gives(each, module, names, known):
                        add(name, called.module)
    return names


def _gives(node: ast.expr, module: Scope, names: dict[str, set[Scope]], known: set[ast.Call]) -> bool:
    return module in names.get(name_last(node), ()) or node in known


def _may_miss(node: ast.Attribute, scope: Scope, names: dict[str, set[Scope]], named: set[str]) -> bool:
    """Whether an attribute that a wrapper has not is asked of what bears the name of one, or is one of its model."""
    return (
        isinstance(node.ctx, ast.Load)
        and isinstance(node.value, (ast.Name, ast.Attribute))
        and (node.attr in named or scope.module in names.get(name_last(node.value), ()))
        and node.attr not in OF_WRAPPER
        and not node.attr.startswith(("_", "register_"))
    )


def _is_meant(node: ast.Attribute, wrapper: Value, scope: Scope, kinds: Kinds) -> bool:
    """Whether the tests around are about other things than what the object is, or how many ranks there are.

    Those around the wrap as well hold where it is one.
    """
    flow = kinds.flow(scope)
    spot = flow.spot(node)
    own = flow.spot(wrapper.call)
    if spot is None or not spot.is_on:
        return False
    sides = {number for number, side in spot.blocks if side != "loop"}
    if own is not None and wrapper.scope is scope:
        sides -= {
            number
            for (number, side), its in zip(own.blocks, spot.blocks, strict=False)
            if its == (number, side)
        }
    around = [statement for statement, at in flow.statements if at.number in sides]
    root = ast.unparse(node.value).split(".")[-1]
    return len(around) == len(sides) and all(
        isinstance(each, ast.If)
        and not ASKS.search(ast.unparse(each.test))
        and not re.search(rf"\b{re.escape(root)}\b", ast.unparse(each.test))
        for each in around
    )


def _is_caught(node: ast.Attribute, scope: Scope) -> bool:
    """Whether the error is awaited: ``try: model.encode(x)``, ``except AttributeError: model.module.encode(x)``."""
    return any(
        isinstance(each, TRIES)
        and bool(each.handlers)
        and any(one is node for statement in each.body for one in ast.walk(statement))
        and any(_catches(handler) for handler in each.handlers)
        for each in own_nodes(scope.node)
    )


def _is_denied(node: ast.Attribute, scope: Scope, kinds: Kinds) -> bool:
    """Whether an ``assert`` that may ask for the wrapper, or for several ranks, is passed before."""
    flow = kinds.flow(scope)
    spot = flow.spot(node)
    return spot is not None and any(
        isinstance(statement, ast.Assert)
        and at.number < spot.number
        and set(at.blocks) <= set(spot.blocks)
        and ASKS.search(ast.unparse(statement.test)) is not None
        for statement, at in flow.statements
    )


def _catches(handler: ast.ExceptHandler) -> bool:
    return (
        handler.type is None
        or re.search(r"AttributeError|\bException", ast.unparse(handler.type)) is not None
    )


def _list_given(node: ast.AST) -> Iterator[str]:
    """Yield the attribute that a statement sets on something else than ``self``."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            yield node.attr
    elif isinstance(node, ast.Call) and _is_setattr(node) and isinstance(node.args[1], ast.Constant):
        yield str(node.args[1].value)
    elif isinstance(node, ast.Lambda):
        yield from (name for each in ast.walk(node.body) for name in _list_given(each))


def _is_setattr(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3


def _sets_by_name(kinds: Kinds) -> bool:
    """Whether a program gives a wrapper attributes whose names are not spelled out: ``setattr(model, name, …)``."""
    return any(
        _is_setattr(call)
        and not isinstance(call.args[1], ast.Constant)
        and ast.unparse(call.args[0]) != "self"
        and any(each.kind in WRAPPED for each in kinds.find(call.args[0], scope))
        for module in kinds.files.modules
        for scope in module.walk()
        for call in find_calls(scope)
    )


def _find_wrapper(node: ast.Attribute, scope: Scope, kinds: Kinds) -> tuple[Value | None, bool]:
    """Return the wrapper that has no such attribute, and whether each run of several ranks has it there."""

    def lacks(value: Value) -> bool:
        return _lacks(value, node.attr, kinds)

    found = kinds.all_of(node.value, scope, *WRAPPED)
    if found:
        return (found[0] if all(map(lacks, found)) else None), True
    return find_some_way(node.value, scope, kinds, lacks), False


def _lacks(value: Value, attribute: str, kinds: Kinds) -> bool:
    """Whether it is a wrapper whose model has an attribute, or may have it where its class stands in no file."""
    if value.kind == "wrapped" and not value.name.endswith(WRAPPER):
        return False
    if value.kind != "wrapped" and not is_wrapped_by_accelerate(value, kinds):
        return False
    models = _models_in(value)
    if any(each.owner is not None and _has(each.owner, attribute, kinds) for each in models):
        return True
    known = (value.kind != "wrapped" or value.name in WRAPPERS) and attribute not in OF_ENGINES
    return known and (not models or any(each.owner is None for each in models))


def _models_in(value: Value) -> list[Value]:
    return [model for each in value.inner for model in (each.inner if each.kind in WRAPPED else (each,))]


def _name_owners(value: Value, attribute: str, kinds: Kinds) -> Iterator[str]:
    for each in _models_in(value):
        if each.owner is not None and _has(each.owner, attribute, kinds):
            yield each.owner.name or ""


def _has(owner: Scope, attribute: str, kinds: Kinds) -> bool:
    """Whether a class has an attribute, its own or of a base; what else a base of a library may have counts too."""
    bases = list(kinds.files.objects.bases(owner))
    if any(attribute in each.attributes or attribute in each.functions for each in bases):
        return True
    return any(
        isinstance(each.node, ast.ClassDef)
        and any(
            (kinds.files.dotted(base, each.outer or each) or "").split(".")[0]
            in ("transformers", "diffusers")
            for base in each.node.bases
        )
        for each in bases
    )


@check("DDP014", family="source", needs=NEEDS, id="lint.attributes", commands=LINT)
def tell_attribute_on_wrapper(evidence: Evidence) -> Iterable[Finding]:
    """An attribute of the model is asked of the wrapper."""
    for fact in facts_of(evidence, "attribute-on-wrapper"):
        owner, attribute, model, way = (fact.details[name] for name in ("owner", "attribute", "model", "way"))
        line, wrap = fact.place.text, name_line(fact.related[0].place)
        whole = f"{owner}.{attribute}"
        own = f"an attribute of {model}" if model else "no attribute of DistributedDataParallel"
        asked = f"{whole} at {name_line(fact.place)} is {own}, but"
        lacks = ", which has no such attribute" if model else ""
        if way in ("wrapped", "some"):
            can = "is" if way == "wrapped" else "can be"
            yield tell_fact(
                fact,
                f"{asked} {owner} {can} the DistributedDataParallel wrapper ({wrap}){lacks}.",
                Fix(
                    "access it on the wrapped model", code=line.replace(whole, f"{owner}.module.{attribute}")
                ),
                why=(
                    "the wrapper was followed to the call that created it, and the class of the model to its "
                    "definition"
                ),
            )
            continue
        several = f"with several processes Accelerate has wrapped {owner} in DistributedDataParallel ({wrap})"
        message = f"{asked} {several}{lacks}"
        fix = Fix(
            "access it on the unwrapped model; what the loss is made of has to go through the model's forward",
            code=line.replace(whole, f"accelerator.unwrap_model({owner}).{attribute}"),
        )
        why = "prepare of Accelerate wraps each model with parameters to train"
        if way == "prepared":
            yield tell_fact(fact, f"{message}.", fix, why=why)
        else:
            ends = ": is it started with DeepSpeed or FSDP alone, whose wrappers hand such requests on?"
            yield tell_question(fact, f"{message}{ends}", fix, why=f"{why}, but the program names others")
