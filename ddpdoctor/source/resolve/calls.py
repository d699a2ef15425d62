"""Which calls all ranks must make: torch.distributed's own, those documented as such, and those of Accelerate."""

from __future__ import annotations

import ast

from ddpdoctor.facts.collectives import COLLECTIVES, SUBGROUP_MAKERS
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import WRAPPERS
from ddpdoctor.source.resolve.walking import find_keyword, is_spelled_out, own_nodes

DIST = "torch.distributed."

JOINS = frozenset(
    {"torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"}
)
"""Functions by which a program becomes a rank."""
MESHES = frozenset({"torch.distributed.init_device_mesh", "torch.distributed.device_mesh.init_device_mesh"})
"""Functions that make the process group too, where there is none."""
SAMPLERS = frozenset(
    {"torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler"}
)
"""Samplers that give each rank its own part of the data."""
GROUP_AT = {row.name: row.group for row in COLLECTIVES.values()}
"""Functions of torch.distributed and where their argument ``group`` stands."""
GROUP_AT_FUNCTIONAL = {
    "all_gather": 1,
    "all_reduce": 2,
    "all_to_all": 2,
    "all_to_all_single": 4,
    "broadcast": 2,
    "gather": 2,
    "reduce": 3,
    "reduce_scatter": 3,
    "scatter": 2,
}
"""Functions of torch.distributed.nn, which keep gradients, and where their argument ``group`` stands."""
FUNCTIONAL = ("torch.distributed.nn.functional.", "torch.distributed.nn.")
PLAIN = ("torch.distributed.distributed_c10d.", "torch.distributed.")
GROUPS = frozenset({"new_group", *SUBGROUP_MAKERS})
"""Calls that make process groups, in which all ranks of the job take part."""
WORLD = frozenset({"torch.distributed.group.WORLD", "torch.distributed.GroupMember.WORLD"})
ACCELERATE = frozenset(
    {"backward", "gather", "gather_for_metrics", "pad_across_processes", "reduce", "wait_for_everyone"}
)
"""Methods of accelerate.Accelerator in which all processes take part."""
STATES = "torch.distributed.checkpoint.state_dict."
GATHERED = frozenset({"full_state_dict", "broadcast_from_rank0"})
"""Settings of StateDictOptions with which the functions of `STATES` gather or broadcast every parameter."""
BY_CONTRACT = {
    **dict.fromkeys(
        (
            f"torch.distributed.checkpoint.{each}{name}"
            for each, name in (
                ("", "save"),
                ("", "load"),
                ("", "async_save"),
                ("state_dict_saver.", "save"),
                ("state_dict_saver.", "async_save"),
                ("state_dict_loader.", "load"),
            )
        ),
        ("process_group", "no_dist"),
    ),
    **dict.fromkeys(
        (
            f"torch.distributed.fsdp.{home}FullyShardedDataParallel.{name}"
            for home in ("", "fully_sharded_data_parallel.")
            for name in (
                "summon_full_params",
                "full_optim_state_dict",
                "optim_state_dict",
                "scatter_full_optim_state_dict",
            )
        ),
        ("group",),
    ),
}
"""Functions that are documented as collectives of the job, and arguments with which they may be others'."""
METHODS = frozenset({"full_tensor", "consolidate_state_dict"})
"""Methods of DTensor and of ZeroRedundancyOptimizer, whose names nobody else uses, in which all ranks take part."""
APEX = "apex.parallel.DistributedDataParallel"


def name_collective(call: ast.Call, scope: Scope, files: Files) -> str | None:
    """Return the operation of a call that all ranks have to make; None for every other call.

    A call with a group of its own, or with arguments that are not spelled out, is none: who has to make it cannot be
    told from here.
    """
    name = files.dotted(call.func, scope)
    if name is None:
        return None
    for prefix, table in (
        *((each, GROUP_AT_FUNCTIONAL) for each in FUNCTIONAL),
        *((p, GROUP_AT) for p in PLAIN),
    ):
        operation = name.removeprefix(prefix)
        if operation == name:
            continue
        if operation in GROUPS:
            return None if find_keyword(call, "use_local_synchronization") is not None else operation
        if operation in table:
            return operation if _of_the_world(call, table[operation], scope, files) else None
    if name in BY_CONTRACT:
        others = any(find_keyword(call, each) is not None for each in BY_CONTRACT[name])
        return None if others or not is_spelled_out(call) else name.rpartition(".")[2]
    if name.startswith(STATES):
        return name.removeprefix(STATES) if _is_gathered(call, scope, files) else None
    return _name_method(call, scope, files)


def _is_gathered(call: ast.Call, scope: Scope, files: Files) -> bool:
    """Whether a state dict is asked for whole: StateDictOptions, given as it is or by a variable, say so."""
    given = find_keyword(call, "options")
    if isinstance(given, ast.Name):
        found = scope.lookup(given.id)
        values = found[1] if found else []
        given = values[0] if len(values) == 1 else None
    if not isinstance(given, ast.Call) or files.dotted(given.func, scope) != f"{STATES}StateDictOptions":
        return False
    settings = {
        each.arg
        for each in given.keywords
        if isinstance(each.value, ast.Constant) and each.value.value is True
    }
    return bool(settings & GATHERED)


def is_any_collective(call: ast.Call, scope: Scope, files: Files) -> bool:
    """Whether a call is a collective of whatever group."""
    name = files.dotted(call.func, scope) or ""
    return name.startswith("torch.distributed.") and name.rpartition(".")[2] in {*GROUP_AT, *GROUPS}


def is_wrapper(value: ast.expr, scope: Scope, files: Files) -> bool:
    """Whether an expression makes a model that reduces its gradients over all ranks."""
    if not isinstance(value, ast.Call) or find_keyword(value, "process_group") is not None:
        return False
    return files.dotted(value.func, scope) in (*WRAPPERS, APEX)


def _name_method(call: ast.Call, scope: Scope, files: Files) -> str | None:
    if not isinstance(call.func, ast.Attribute):
        return None
    method = call.func.attr
    if method in METHODS or (method == "state_dict" and _is_whole_state(call, scope, files)):
        return method
    if method not in ACCELERATE:
        return None
    owner = call.func.value
    if isinstance(owner, ast.Name):
        found = scope.lookup(owner.id)
        values = found[1] if found else []
    elif isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "self":
        home = scope.find_class()
        values = home.attributes.get(owner.attr, []) if home else []
    else:
        return None
    made = [files.dotted(each.func, scope) for each in values if isinstance(each, ast.Call)]
    return method if made and set(made) <= {"accelerate.Accelerator"} else None


def _is_whole_state(call: ast.Call, scope: Scope, files: Files) -> bool:
    """Whether it is the whole state of a sharded model: below ``FSDP.state_dict_type(model, FULL_STATE_DICT)``."""
    if "FULL_STATE_DICT" not in scope.module.script.text:
        return False
    return any(
        isinstance(node, ast.With)
        and any(
            isinstance(item.context_expr, ast.Call)
            and (files.dotted(item.context_expr.func, scope) or "").endswith(
                "FullyShardedDataParallel.state_dict_type"
            )
            and "FULL_STATE_DICT" in ast.unparse(item.context_expr)
            for item in node.items
        )
        and any(each is call for each in ast.walk(node))
        for node in own_nodes(scope.node)
    )


def _of_the_world(call: ast.Call, position: int, scope: Scope, files: Files) -> bool:
    if not is_spelled_out(call):
        return False
    group = find_keyword(call, "group", position)
    if group is None or (isinstance(group, ast.Constant) and group.value is None):
        return True
    return files.dotted(group, scope) in WORLD
