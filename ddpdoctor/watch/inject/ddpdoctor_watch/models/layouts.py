"""How a model is shared out over the ranks: meshes, sharded parameters, and the groups that there are.

Read from the models and tensors that are looked at anyway (`steps`), by attribute: nothing is replaced, and nothing is
asked of torch that would wait for other ranks.
"""

from __future__ import annotations

import sys

from ..calls import groups
from ..core import journal
from . import pipelines, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ddpdoctor.facts import strategies, training_events
else:
    from .. import strategies

_GROUPS = 256
"""Process groups of this rank that are listed."""


def describe(models: list[Any], tensors: list[Any]) -> training_events.LayoutParts | None:
    """Return how models are shared out; None where only DistributedDataParallel does, or nothing.

    Args:
        models: That tensors belong to.
        tensors: Parameters and buffers that are looked at, DTensors as they are.

    Returns:
        ``axes``: strategy or "group", name, ranks, of each set of ranks that this one belongs to; ``pieces``: which
        piece of a tensor this rank holds, as a text that is equal on the ranks that hold the same, and places of the
        tensors.
    """
    axes: dict[tuple[str, str, tuple[int, ...]], None] = {}
    pieces: dict[str, list[int]] = {}
    try:
        data, flat = _find_sharded(models, axes)
        for place, tensor in enumerate(tensors):
            piece = flat.get(id(tensor)) or (
                _describe_piece(tensor, data, axes) if type(tensor).__name__ == "DTensor" else ""
            )
            if piece:
                pieces.setdefault(piece, []).append(place)
        axes.update(dict.fromkeys(pipelines.list_axes()))
        for name, ranks in list_smaller_groups():
            axes[("group", name, ranks)] = None
    except Exception as error:
        journal.failed("layout", error)
    if not axes and not pieces:
        return None
    return {
        "axes": [[how, name, list(ranks)] for how, name, ranks in axes],
        "pieces": [[piece, places] for piece, places in pieces.items()],
    }


def is_sharded(model: Any) -> bool:
    """Whether ranks hold parts of a model: by FSDP, DTensor, DeepSpeed's ZeRO or Megatron's marks of parameters."""
    sharding = {strategies.FSDP1.name, "FSDPModule"}
    return any(
        not sharding.isdisjoint(kind.__name__ for kind in type(module).__mro__)
        for _, module in tree.list_modules(model)
    ) or any(
        type(each).__name__ in ("DTensor", "FlatParameter")
        or hasattr(each, "ds_id")
        or getattr(each, "tensor_model_parallel", False)
        for _, each in tree.list_parameters(model)
    )


def _find_sharded(
    models: list[Any], axes: dict[tuple[str, str, tuple[int, ...]], None]
) -> tuple[set[tuple[str, tuple[int, ...]]], dict[int, str]]:
    """Find the modules that FSDP shards; note their axes.

    Returns:
        Name and ranks of the dimensions over which fully_shard shards, and the pieces of flat parameters by their id.
    """
    data: set[tuple[str, tuple[int, ...]]] = set()
    flat: dict[int, str] = {}
    for model in models:
        for _, module in tree.list_modules(model):
            kinds = {kind.__name__ for kind in type(module).__mro__}
            if strategies.FSDP1.name in kinds:
                flat.update(_describe_flat(module, axes))
            elif "FSDPModule" in kinds:
                for mesh in _list_meshes(module):
                    for dimension in range(mesh.ndim):
                        name, ranks = _read_dimension(mesh, dimension)
                        if len(ranks) > 1:
                            data.add((name, ranks))
                            axes[(strategies.FSDP2.name, name, ranks)] = None
    return data, flat


def _list_meshes(module: Any) -> Iterator[Any]:
    for each in _list_parts(module):
        yield each.mesh_info.mesh


def _list_parts(module: Any) -> list[Any]:
    """Return the groups of parameters that fully_shard shards together in a module."""
    state = module._get_fsdp_state()
    held = getattr(state, "_fsdp_param_groups", None)
    if held is None:
        one = getattr(state, "_fsdp_param_group", None)
        held = [one] if one is not None else []
    return list(held)


def list_policies(module: Any) -> list[Any]:
    """Return the precisions that fully_shard was told to compute a module in."""
    if not any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
        return []
    try:
        return [getattr(each, "mp_policy", None) for each in _list_parts(module)]
    except Exception as error:
        journal.failed("layout", error)
        return []


def find_part(model: Any) -> Any:
    """Return the first group of parameters that fully_shard shares out in a model; None where there is none."""
    try:
        for _, module in tree.list_modules(model):
            if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
                parts = [each for each in _list_parts(module) if each.fsdp_params]
                if parts:
                    return parts[0]
    except Exception as error:
        journal.failed("layout", error)
    return None


def find_gathered(models: list[Any]) -> dict[int, Any]:
    """Return the parameters that fully_shard has gathered by now: id of the whole one -> the shard of this rank.

    A model has the whole ones from a forward on that no backward follows, as in a validation.
    """
    try:
        return {
            id(each._unsharded_param): each.sharded_param
            for model in models
            for _, module in tree.list_modules(model)
            if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)
            for part in _list_parts(module)
            for each in part.fsdp_params
            if getattr(each, "_unsharded_param", None) is not None
        }
    except Exception as error:
        journal.failed("layout", error)
        return {}


def count_unsynced(models: list[Any], tensors: list[Any]) -> int:
    """Return how many modules of fully_shard hold parameters of a step, and were told not to reduce gradients.

    Those that shard and replicate pass no gradients on without their all-reduce either
    (``FSDPParamGroup.post_backward``).
    """
    wanted = {id(each) for each in tensors if type(each).__name__ == "DTensor"}
    if not wanted:
        return 0
    try:
        return sum(
            not getattr(part, "reduce_grads", True)
            or (getattr(part, "_is_hsdp", False) and not getattr(part, "all_reduce_grads", True))
            for model in models
            for _, module in tree.list_modules(model)
            if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)
            for part in _list_parts(module)
            if any(id(getattr(each, "sharded_param", None)) in wanted for each in part.fsdp_params)
        )
    except Exception as error:
        journal.failed("layout", error)
        return 0


def _describe_flat(module: Any, axes: dict[tuple[str, str, tuple[int, ...]], None]) -> dict[int, str]:
    """Note the axes of one FullyShardedDataParallel; return the pieces of its own flat parameter."""
    held = vars(module)
    sharding = str(getattr(held.get("sharding_strategy"), "name", ""))
    ranks = groups.list_members(held.get("process_group")) or ()
    between = groups.list_members(held["_inter_node_pg"]) if held.get("_inter_node_pg") is not None else None
    for members in (ranks, between or ()):
        if len(members) > 1:
            axes[(strategies.FSDP1.name, "", tuple(members))] = None
    handle = held.get("_handle")
    if handle is None or sharding == "NO_SHARD" or len(ranks) < 2:
        return {}
    rank = held["process_group"].rank()
    piece = f"{rank}/{len(ranks)}"
    found = {id(handle.flat_param): piece}
    for each in getattr(handle.flat_param, "_params", None) or ():
        found[id(each)] = piece
    return found


def _describe_piece(
    tensor: Any, data: set[tuple[str, tuple[int, ...]]], axes: dict[tuple[str, str, tuple[int, ...]], None]
) -> str:
    """Return which piece of a DTensor this rank holds; empty where every rank of its mesh holds the whole."""
    spec = tensor._spec
    mesh, told = spec.mesh, []
    coordinate = mesh.get_coordinate()
    for dimension, placement in enumerate(spec.placements):
        name, ranks = _read_dimension(mesh, dimension)
        if len(ranks) < 2:
            continue
        if (name, ranks) not in data:
            axes[(strategies.DTENSOR.name, name, ranks)] = None
        if not placement.is_replicate() and coordinate is not None:
            told.append(f"{name}{coordinate[dimension]}/{len(ranks)}")
    return " ".join(told)


def _read_dimension(mesh: Any, dimension: int) -> tuple[str, tuple[int, ...]]:
    """Return the name of a mesh's dimension and the ranks along it that this one belongs to."""
    names = mesh.mesh_dim_names
    ranks = groups.list_members(mesh.get_group(dimension)) or ()
    return (str(names[dimension]) if names else "", tuple(ranks))


def list_smaller_groups() -> list[tuple[str, tuple[int, ...]]]:
    """Return the groups of this rank besides that of all ranks: names of mesh dimensions, and members."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    held = list(getattr(world, "pg_group_ranks", None) or {})[:_GROUPS]
    everyone = max((len(world.pg_group_ranks[group]) for group in held), default=0)
    found = []
    for group in held:
        ranks = tuple(sorted(int(rank) for rank in world.pg_group_ranks[group]))
        if 1 < len(ranks) < everyone:
            found.append((groups.find_dimension(group), ranks))
    return list(dict.fromkeys(found))
