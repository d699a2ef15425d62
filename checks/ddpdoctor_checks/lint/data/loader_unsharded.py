"""DAT001: the loader of a training gives each rank all data."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.kinds import Kinds, Value, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.walking import find_keyword, is_spelled_out, names_in
from ddpdoctor.source.training.train_loops import (
    RANDOM,
    TrainingLoop,
    about_random,
    about_shards,
    loaders_of,
    note_loader,
    speaks_of,
    training_loops,
)
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import find_call, name_target, read_line, set_keyword

SHUFFLES = frozenset(
    {"sample", "shuffle", "permutation", "permuted", "randperm", "train_test_split", "random_split"}
)
"""Functions and methods that put samples into an order drawn at random."""
PLAIN = frozenset({"RandomSampler", "SequentialSampler"})
"""Samplers of torch that know no ranks."""
_SAMPLER = (
    "sampler = DistributedSampler(dataset, shuffle=True)\n"
    "loader = DataLoader(dataset, batch_size, sampler=sampler)\n"
    "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"
)


@lint_rule("loader-unsharded", reads="files")
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
                    yield note_loader(each, "loader-unsharded", loop, order="shuffled" if shuffled else order)


def _may_shuffle(module: Scope, kinds: Kinds) -> bool:
    """Whether a program calls what puts samples into an order of its own, such as ``frame.sample(frac=1)``."""
    return any(
        (each.func.attr if isinstance(each.func, ast.Attribute) else name) in SHUFFLES
        for each, _, name in kinds.programs.calls(module)
    )


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


@check("DAT001", family="source", needs=("sources",), id="lint.sharded", commands=LINT)
def tell_unsharded(evidence: Evidence) -> Iterable[Finding]:
    """The loader of a training that is wrapped gives each rank all data."""
    for fact in facts_of(evidence, "loader-unsharded"):
        orders = {"shuffled": ", each in its own order", "in order": ", in the same order"}
        order = fact.details["order"]
        yield tell_fact(
            fact,
            f"The DataLoader at {name_line(fact.place)} has no DistributedSampler: each rank trains on the "
            f"whole dataset{orders.get(order, '')}.",
            Fix(
                "give each rank its own shard of the data",
                code=_shard(fact.place.text, shuffled=order != "in order"),
            ),
            why=(
                "the loop that trains a DistributedDataParallel model iterates over it, and nothing shards "
                "the dataset by rank"
            ),
            severity=None if order == "in order" else "warning",
        )


def _shard(text: str, *, shuffled: bool) -> str:
    """Return the loader of a line with a sampler."""
    statement = read_line(text)
    call = find_call(statement, "DataLoader")
    if statement is None or call is None or not call.args:
        return _SAMPLER
    data = ast.unparse(call.args[0])
    set_keyword(call, "shuffle", None)
    set_keyword(call, "sampler", "sampler")
    line = ast.unparse(statement) if name_target(statement) else f"loader = {ast.unparse(call)}"
    return (
        f"sampler = DistributedSampler({data}, shuffle={shuffled})\n{line}\n"
        "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"
    )
