"""DDP015: several ranks train a model, and nothing reduces gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import WRAPPERS
from ddpdoctor.source.resolve.programs import ALL_JOINS
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.training.train_loops import is_step, training_loops
from ddpdoctor.source.training.wraps import carries_no_gradients, reduces_by_hand, wraps_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

QUIET = frozenset({"init_process_group", "destroy_process_group", "get_rank", "get_world_size", "barrier",
                   "is_initialized", "is_available", "is_nccl_available", "is_gloo_available", "get_backend",
                   "is_torchelastic_launched", "get_node_local_rank", "monitored_barrier",
                   "get_default_backend_for_device", "new_group", "ZeroRedundancyOptimizer", "Join"})  # fmt: skip
"""Functions of torch.distributed that reduce no gradients."""
MANAGERS = ("distributeddataparallel", "ddp", "fsdp", "fully", "sharded", "deepspeed", "horovod", "apex", "accelerate",
            "lightning", "fabric", "fairscale", "megatron", "parallelize", "replicate", "distribute_",
            "tensor.parallel", "ignite", "composer", "colossal", "averaging", "averager", "rpc", "pipelin",
            "dataparallel")  # fmt: skip
"""Parts of the names of what else trains a model over several ranks."""
OF_GRADIENTS = frozenset(
    {"grad", "grads", "gradients", "parameters", "named_parameters", "param_groups", "params"}
)
"""Names by which a model's gradients or parameters are given."""
SCHEDULES = ("scheduler", "warmup")
"""Parts of the names of what sets the learning rate of an optimizer."""
ALONE = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"})
"""What trains a model over the devices of one process."""
SETTINGS = frozenset({"lr", "weight_decay", "momentum", "betas", "dtype", "device", "shape", "requires_grad"})
"""What is asked of parameters, or of their groups, that is none."""


@lint_rule("unwrapped", reads="files")
def find_unwrapped(files: Files) -> Iterator[SourceFact]:
    """Yield steps of an optimizer in a program of several ranks in which nothing reduces gradients (``unwrapped``).

    way: ``never`` or ``thrown away`` (a wrapper is made and not kept). model: its class. Only programs whose training
    data a DistributedSampler cuts up, and, not certain, those that import the wrapper and use it nowhere: others may
    train a model on each rank on purpose.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        module = loop.scope.module
        values = {v.identity: v for forward in loop.forwards for v in forward.values}
        if not values or any(each.kind != "model" for each in values.values()):
            continue
        steps = [(call, home) for call, home in loop.calls if is_step(call, home, kinds)]
        if not steps or steps[0][0] in told or not _joins(module, kinds):
            continue
        shards = _shards(module, kinds)
        if not shards and not _imports_in_vain(module, kinds):
            continue
        thrown = _find_thrown_away(kinds.programs.members(module), kinds)
        if any(
            not _is_harmless(call, home, name, kinds, thrown, values.values())
            for call, home, name in kinds.programs.calls(module)
        ):
            continue
        if reduces_by_hand(loop.scope, kinds) or imports_managers(module, kinds, bool(thrown)):
            continue
        call, home = steps[0]
        told.add(call)
        model = next(iter(values.values()))
        name = model.owner.name if model.owner is not None else model.name.rpartition(".")[2]
        way = "thrown away" if thrown else "never"
        places = [RelatedPlace("noticed", s.place(one)) for one, s in thrown]
        details = {"way": way, "model": name or "", "shards": "yes" if shards else ""}
        yield SourceFact("unwrapped", home.place(call), tuple(places), details, certain=shards)


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


def _joins(module: Scope, kinds: Kinds) -> bool:
    """Whether a program joins a group of several ranks."""
    return any(kinds.programs.calls(module, ALL_JOINS)) and kinds.programs.is_distributed(module)


def _shards(module: Scope, kinds: Kinds) -> bool:
    """Whether a DistributedSampler cuts up the data of a program: its ranks train one model."""
    return any(name.endswith(".DistributedSampler") for _, _, name in kinds.programs.calls(module))


def _imports_in_vain(module: Scope, kinds: Kinds) -> bool:
    """Whether a program imports torch's wrapper and no line of that file uses it."""
    return any(
        name in WRAPPERS and not _is_used(own, member)
        for member in kinds.programs.members(module)
        for own, name in member.imports.items()
    )


def _is_harmless(
    call: ast.Call,
    scope: Scope,
    name: str,
    kinds: Kinds,
    thrown: Iterable[tuple[ast.Call, Scope]],
    models: Iterable[Value],
) -> bool:
    """Whether a call can have no part in making gradients or parameters of models equal."""
    if any(call is each for each, _ in thrown):
        return True
    if kinds.files.function(call.func, scope) is not None:
        return True
    last = name.rpartition(".")[2]
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method.startswith("register_") and "hook" in method:
        return all(kinds.files.function(each, scope) is not None for each in call.args)
    if name.startswith("torch.distributed."):
        return last in QUIET or carries_no_gradients(call, scope, kinds)
    wrap = next((each for each in wraps_of(kinds) if each.value.call is call), None)
    if wrap is not None:
        return all(each.made is not None for each in wrap.value.inner) and not any(map(wrap.holds, models))
    if any(word in name.lower() for word in MANAGERS) and name not in ALONE:
        return False
    if name.split(".")[0] in KNOWN_ROOTS:
        return True
    given = [*call.args, *(each.value for each in call.keywords)]
    if kinds.files.find_class(call.func, scope) is not None or not given:
        return True
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant):
        return True  # a method of a text
    if any(word in name.lower() for word in SCHEDULES):
        return True
    if isinstance(call.func, ast.Attribute) and any(
        each.kind in ("model", "optimizer", "loss", "scaler", "scheduler")
        for each in kinds.find(call.func.value, scope)
    ):
        return True
    if any(not OF_GRADIENTS.isdisjoint(_list_names(each)) for each in given):
        return False  # a function that was not given may reduce them
    return not any(each.kind in ("model", "optimizer") for node in given for each in kinds.find(node, scope))


def _list_names(node: ast.AST) -> Iterator[str]:
    """Yield the names in an expression, but of what is only a setting: a learning rate, a dtype, a device."""
    if isinstance(node, ast.Attribute) and node.attr in SETTINGS:
        return
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value in SETTINGS
    ):
        return
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield node.id if isinstance(node, ast.Name) else node.attr
    for child in ast.iter_child_nodes(node):
        yield from _list_names(child)


def imports_managers(module: Scope, kinds: Kinds, wraps: bool) -> bool:
    """Whether a program imports what else trains over ranks; a wrapper may be imported where one is thrown away.

    Nor does an import of torch's wrapper count that no line uses.
    """
    for member in kinds.programs.members(module):
        for scope in member.walk():
            for own, name in scope.imports.items():
                if wraps and name.endswith("DistributedDataParallel"):
                    continue
                if name in WRAPPERS and not _is_used(own, member):
                    continue
                if any(word in name.lower() for word in MANAGERS):
                    return True
    return False


def _is_used(name: str, module: Scope) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(module.node))


@check("DDP015", family="source", needs=("sources",), id="lint.model_wrapped", commands=LINT)
def tell_unwrapped(evidence: Evidence) -> Iterable[Finding]:
    """A program of several ranks trains a model, and nothing in it reduces gradients."""
    for fact in facts_of(evidence, "unwrapped"):
        way, model = fact.details["way"], fact.details["model"]
        kept = (
            f"the DistributedDataParallel at {name_line(fact.related[0].place)} is not kept"
            if way == "thrown away"
            else "no DistributedDataParallel wraps it"
        )
        yield tell_fact(
            fact,
            f"The optimizer steps at {name_line(fact.place)} with the gradients of one rank: {kept} ({model}).",
            Fix(
                "wrap the model before the loop and call the wrapper",
                code="model = DistributedDataParallel(model)",
            ),
            why="the program joins a process group, "
            + (
                "shards its data with a DistributedSampler"
                if fact.details["shards"]
                else "imports DistributedDataParallel without using it"
            )
            + " and reduces nothing",
        )
