"""Rules of how training data is shared out among the ranks, and of its order."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.calls import JOINS, SAMPLERS
from ddpdoctor.source.flow import name_of
from ddpdoctor.source.kinds import Kinds, Value, born_with, kinds_of
from ddpdoctor.source.makers import find_class_kind
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.steps import (
    RANDOM,
    TrainingLoop,
    about_random,
    about_shards,
    enclosing_loops,
    loaders_of,
    runs_again,
    speaks_of,
    training_loops,
)
from ddpdoctor.source.texts import fold
from ddpdoctor.source.walking import find_keyword, is_spelled_out, names_in, own_nodes

FEW_RANKS = 4
"""A rank of so many may have its whole share in one batch, whose order does not matter."""
SHUFFLES = frozenset(
    {"sample", "shuffle", "permutation", "permuted", "randperm", "train_test_split", "random_split"}
)
"""Functions and methods that put samples into an order drawn at random."""
PLAIN = frozenset({"RandomSampler", "SequentialSampler"})
"""Samplers of torch that know no ranks."""


def find_unsharded(files: Files) -> Iterator[SourceFact]:
    """Yield loaders that give each rank of a wrapped model the whole data set (``loader-unsharded``).

    order: ``shuffled``, ``in order``, or ``any order`` where the program may shuffle the samples itself. Passed over is
    what may be shared out in another way: streams, data sets that are not followed to their making or that know ranks,
    data that is made up, loops that skip by rank.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if (
            not loop.wrapped
            or not isinstance(loop.node, (ast.For, ast.AsyncFor))
            or _skips_by_rank(loop, kinds)
        ):
            continue
        loaders = loaders_of(loop.node.iter, loop.scope, kinds)
        if not loaders or not all(_is_whole(each, kinds) for each in loaders):
            continue
        if _is_alone(loop.scope.module, kinds):
            continue
        for each in loaders:
            if each.scope is not None and each.call not in told:
                told.add(each.call)
                shuffled = _shuffles(each.call, kinds, each.scope)
                if not (shuffled and _is_drawn_apart(each, kinds)):
                    order = "any order" if _may_shuffle(each.scope.module, kinds) else "in order"
                    yield _tell(each, "loader-unsharded", loop, order="shuffled" if shuffled else order)


def _may_shuffle(module: Scope, kinds: Kinds) -> bool:
    """Whether a program calls what puts samples into an order of its own, such as ``frame.sample(frac=1)``."""
    return any(
        (each.func.attr if isinstance(each.func, ast.Attribute) else name) in SHUFFLES
        for each, _, name in kinds.programs.calls(module)
    )


def _tell(value: Value, rule: str, loop: TrainingLoop, **details: str) -> SourceFact:
    scope = value.scope or loop.scope
    noticed = loop.scope.place(loop.node)
    return SourceFact(rule, scope.place(value.call), (RelatedPlace("noticed", noticed),), details)


def _is_whole(loader: Value, kinds: Kinds) -> bool:
    """Whether a loader surely goes through a whole data set, the same on each rank."""
    call, scope = loader.call, loader.scope
    if scope is None or not is_spelled_out(call):
        return False
    for name, place in (("sampler", 3), ("batch_sampler", 4)):
        sampler = find_keyword(call, name, place)
        if sampler is not None and not all(
            each.kind == "none" or (each.kind == "sampler" and each.name.rpartition(".")[2] in PLAIN)
            for each in kinds.find(sampler, scope)
        ):
            return False
    data = find_keyword(call, "dataset", 0)
    if data is None or find_keyword(call, "worker_init_fn") is not None:
        return False
    sets = kinds.all_of(data, scope, "dataset")
    return bool(sets) and all(_is_the_same(each, kinds) for each in sets)


def _is_the_same(data: Value, kinds: Kinds) -> bool:
    """Whether a data set is the same on each rank, by all that is seen of its making."""
    if data.scope is None or speaks_of(data.call, about_shards, data.scope, kinds):
        return False
    if data.owner is None:
        return not speaks_of(data.call, about_random, data.scope, kinds)
    if any(map(about_shards, names_in(data.owner.node))):
        return False
    maker, getter = (data.owner.functions.get(name) for name in ("__init__", "__getitem__"))
    if maker is not None and not RANDOM.isdisjoint(names_in(maker.node)):
        return False
    # what is drawn for each sample differs where ranks are seeded by their number
    draws = getter is not None and not RANDOM.isdisjoint(names_in(getter.node))
    return not (draws and _is_seeded_apart(data.scope.module, kinds))


def _shuffles(call: ast.Call, kinds: Kinds, scope: Scope) -> bool:
    sampler = find_keyword(call, "sampler", 3)
    if sampler is not None and any(v.name.endswith("RandomSampler") for v in kinds.find(sampler, scope)):
        return True
    shuffle = find_keyword(call, "shuffle", 2)
    return shuffle is not None and not (isinstance(shuffle, ast.Constant) and not shuffle.value)


def _is_drawn_apart(loader: Value, kinds: Kinds) -> bool:
    """Whether the random order is meant to differ: a generator of the loader's own, or a seed with the rank in it."""
    if find_keyword(loader.call, "generator") is not None or loader.scope is None:
        return True
    return _is_seeded_apart(loader.scope.module, kinds)


def _is_seeded_apart(module: Scope, kinds: Kinds) -> bool:
    """Whether a program seeds random numbers by the rank."""
    for call, scope, name in kinds.programs.calls(module):
        if "seed" in name.rpartition(".")[2].lower() and any(
            speaks_of(each, about_shards, scope, kinds) for each in call.args
        ):
            return True
    return False


def _is_alone(module: Scope, kinds: Kinds) -> bool:
    """Whether the process groups of a program are made for one rank."""
    sizes = [
        fold(find_keyword(call, "world_size"), scope, kinds.files)
        for call, scope, name in kinds.programs.calls(module)
        if name in JOINS
    ]
    return bool(sizes) and all(size == "1" for size in sizes)


def _skips_by_rank(loop: TrainingLoop, kinds: Kinds) -> bool:
    """Whether a loop takes its own share of the batches, by a remainder, a slice or a test on the rank.

    Also in functions that it gives something that it has of a batch.
    """
    called = {kinds.files.function(call.func, home) for call, home in loop.calls}
    bodies = [loop.node.body, *(getattr(each.node, "body", []) for each in called if each is not None)]
    for node in (inner for body in bodies for each in body for inner in ast.walk(each)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            chosen: ast.AST = node.right
        elif isinstance(node, ast.Subscript):
            chosen = node.slice
        elif isinstance(node, ast.If) and any(isinstance(each, ast.Continue) for each in node.body):
            chosen = node.test
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("chunk", "split")
        ):
            chosen = node
        else:
            continue
        if any(map(about_shards, names_in(chosen))):
            return True
    return False


def find_epoch_unset(files: Files) -> Iterator[SourceFact]:
    """Yield samplers whose ``set_epoch`` nobody calls in the loop over epochs (``epoch-unset``).

    way: ``never``, ``once`` (outside of all loops) or ``other`` (that of another sampler is called).
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or not runs_again(loop.node, loop.scope, kinds):
            continue
        loaders = loaders_of(loop.node.iter, loop.scope, kinds)
        by_loader = [(loader, samplers_of(loader, kinds)) for loader in loaders]
        if any(each.name not in SAMPLERS for _, own in by_loader for each in own):
            continue
        # those that keep their order are for an evaluation in the same loop
        by_loader = [(loader, own) for loader, own in by_loader if own and all(map(_is_shuffling, own))]
        samplers = [each for _, own in by_loader for each in own]
        if not samplers or any(_is_one_batch(loader) for loader, _ in by_loader):
            continue
        around = enclosing_loops(loop.node, loop.scope, kinds)
        if any(_stands_in(loader.call, around) for loader in loaders):
            continue  # made anew in each epoch
        if not around and any(v.scope is loop.scope for each in loop.forwards for v in each.values):
            continue  # a training of its own each time
        way = _find_way(samplers, loop, kinds)
        for each in samplers if way else ():
            if each.call not in told:
                told.add(each.call)
                yield _tell(each, "epoch-unset", loop, way=way or "")


def samplers_of(loader: Value, kinds: Kinds) -> tuple[Value, ...]:
    """Return what the sampler of a loader may be; nothing where it has none."""
    if loader.scope is None or loader.kind != "loader" or not is_spelled_out(loader.call):
        return ()
    sampler = find_keyword(loader.call, "sampler", 3)
    if sampler is None:
        batches = find_keyword(loader.call, "batch_sampler", 4)
        made = kinds.all_of(batches, loader.scope, "sampler") if batches is not None else ()
        if (
            len(made) != 1
            or made[0].name.rpartition(".")[2] != "BatchSampler"
            or made[0].scope is not loader.scope
        ):
            return made
        sampler = find_keyword(made[0].call, "sampler", 0)
    found = kinds.find(sampler, loader.scope) if sampler is not None else ()
    return tuple(born_with(each, loader) for each in found)


def _is_shuffling(sampler: Value) -> bool:
    if sampler.kind != "sampler" or sampler.name not in SAMPLERS or not is_spelled_out(sampler.call):
        return False
    seed = find_keyword(sampler.call, "seed", 4)
    if seed is not None and any("epoch" in name.lower() for name in names_in(seed)):
        return False
    shuffle = find_keyword(sampler.call, "shuffle", 3)
    return shuffle is None or (isinstance(shuffle, ast.Constant) and shuffle.value is True)


def _is_one_batch(loader: Value) -> bool:
    """Whether a batch may be all that a rank has: sizes that the script spells out, on up to `FEW_RANKS` ranks."""
    data, batch = find_keyword(loader.call, "dataset", 0), find_keyword(loader.call, "batch_size", 1)
    if (
        not isinstance(batch, ast.Constant)
        or not isinstance(batch.value, int)
        or data is None
        or not loader.scope
    ):
        return False
    found = [data, *(loader.scope.lookup(data.id) or (None, []))[1]] if isinstance(data, ast.Name) else [data]
    for each in found:
        while isinstance(each, (ast.Call, ast.Name)):
            if isinstance(each, ast.Name):
                known = loader.scope.lookup(each.id)
                each = known[1][0] if known is not None and len(known[1]) == 1 else ast.Constant(None)
            else:
                each = each.args[0] if each.args else ast.Constant(None)
        if (
            isinstance(each, ast.Constant)
            and isinstance(each.value, int)
            and each.value <= FEW_RANKS * batch.value
        ):
            return True
    return False


def _stands_in(node: ast.AST, loops: list[ast.stmt]) -> bool:
    return any(each is node for loop in loops for each in ast.walk(loop))


def _find_way(samplers: list[Value], loop: TrainingLoop, kinds: Kinds) -> str | None:
    """Return how ``set_epoch`` is missed; None where it is called, or that cannot be told."""
    module = loop.scope.module
    made = {each.identity for each in samplers}
    if any(map(_sets_otherwise, kinds.programs.members(module))):
        return None
    way = "never"
    for call, scope, _ in kinds.programs.calls(module):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "set_epoch":
            continue
        owner = call.func.value
        if isinstance(owner, ast.Attribute) and owner.attr == "sampler" and name_of(owner) is None:
            values = [
                v
                for loader in kinds.find(owner.value, scope)
                for v in samplers_of(loader, kinds) or (loader,)
            ]
        else:
            values = list(kinds.find(owner, scope))
        if any(each.kind not in ("sampler", "dataset", "none") for each in values):
            return None
        if made.isdisjoint(each.identity for each in values):
            way = "other" if way == "never" and any(v.kind == "sampler" for v in values) else way
        elif runs_again(call, scope, kinds) or _is_called_elsewhere(scope, kinds):
            return None
        else:
            way = "once"
    return way


def _sets_otherwise(module: Scope) -> bool:
    """Whether a file sets an attribute ``epoch`` of something, or takes ``set_epoch`` by its name."""
    return any(
        (isinstance(each, ast.Constant) and each.value == "set_epoch")
        or (
            isinstance(each, ast.Attribute)
            and each.attr == "epoch"
            and isinstance(each.ctx, ast.Store)
            and not (isinstance(each.value, ast.Name) and each.value.id == "self")
        )
        for each in ast.walk(module.node)
    )


def _is_called_elsewhere(scope: Scope, kinds: Kinds) -> bool:
    """Whether a function is a method whose calls are not known, such as that of a hook."""
    return scope.find_class() is not None and not kinds.callers(scope)


def find_epoch_ignored(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield samplers of the files that shuffle by a seed and do not use the epoch they are told (``epoch-ignored``).

    sampler: the class.
    """
    for scope in module.walk():
        if not isinstance(scope.node, ast.ClassDef) or find_class_kind(scope, files) != "sampler":
            continue
        order, setter = scope.functions.get("__iter__"), scope.functions.get("set_epoch")
        inherits = setter is None and any(
            (files.dotted(base, scope) or "") in SAMPLERS for base in scope.node.bases
        )
        if order is None or not (inherits or setter is not None) or not _shuffles_by_seed(scope, order):
            continue
        kept = {"epoch"} if setter is None else _attributes_kept(setter)
        if kept is not None and kept.isdisjoint(_attributes_read(scope)) and not _calls_super(order):
            told = setter or order
            yield SourceFact("epoch-ignored", told.place(told.node), details={"sampler": scope.node.name})


def _shuffles_by_seed(owner: Scope, order: Scope) -> bool:
    names = set(names_in(order.node))
    shuffles = bool(names & {"randperm", "shuffle", "permutation", "sample"})
    return shuffles and bool(names & {"manual_seed", "Random", "RandomState", "default_rng"})


def _attributes_kept(setter: Scope) -> set[str] | None:
    """Return the attributes that a ``set_epoch`` sets; None where it does more than that."""
    kept = set()
    for node in own_nodes(setter.node):
        if isinstance(node, ast.Call):
            return None
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            kept.add(node.attr)
    return kept


def _attributes_read(owner: Scope) -> set[str]:
    return {
        node.attr
        for name, method in owner.functions.items()
        if name != "set_epoch"
        for node in ast.walk(method.node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def _calls_super(function: Scope) -> bool:
    return "super" in set(names_in(function.node))
