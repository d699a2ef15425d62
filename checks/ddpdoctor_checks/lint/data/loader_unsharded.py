"""DAT001: the loader of a training gives each rank all data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.tables import may_give
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, is_true, name_last, names_in, own_nodes
from ddpdoctor.source.training.graphs import slice_of
from ddpdoctor.source.training.train_loops import (
    RANDOM,
    about_random,
    about_shards,
    batches_of,
    is_seeded_apart,
    list_inner_samplers,
    may_be_wrapped,
    note_loader,
    skips_by_rank,
    speaks_of,
    training_loops,
)
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact, tell_question
from ddpdoctor_checks.lint.rewriting import find_call, name_target, read_line, set_keyword

SHUFFLES = frozenset(
    {"sample", "shuffle", "permutation", "permuted", "randperm", "train_test_split", "random_split"}
)
"""Functions and methods that put samples into an order drawn at random."""
SEEDS = frozenset({"torch.manual_seed", "torch.random.manual_seed", "numpy.random.seed", "random.seed"})
OF_SEEDS = re.compile(
    r"(?:^|[._])(?:set|fix|init)_?(?:\w+_)?(?:random_)?seeds?$|seed_(?:everything|all)$", re.IGNORECASE
)
"""Names of functions that seed all random numbers."""
ORDERING = frozenset({"seed", "shuffle", "permutation"})
"""Functions of a module of random numbers that leave each rank all samples."""
PLAIN = frozenset({"RandomSampler", "SequentialSampler"})
"""Samplers of torch that know no ranks."""
BASES = frozenset({"Sampler", "BatchSampler", "RandomSampler", "SequentialSampler", "object"})
"""Classes that a sampler may inherit from without knowing ranks."""
DISTRIBUTES = re.compile(
    r"dist|ddp|world|rank|gpu|parallel|multi|launch|slurm|nproc|num_proc|local", re.IGNORECASE
)
"""Tests that may ask whether there are several ranks."""
ALONE = re.compile(
    r"debug|single|alone|toy|overfit|sanity|test|eval|valid|cpu|tpu|xla|cluster|horovod|hvd|deepspeed|mpi|spawn|node",
    re.IGNORECASE,
)
"""Tests of which one side may be for one rank alone."""
_SAMPLER = (
    "sampler = DistributedSampler(dataset, shuffle=True)\n"
    "loader = DataLoader(dataset, batch_size, sampler=sampler)\n"
    "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"
)


@lint_rule("loader-unsharded", "loader-doubted", reads="files")
def find_unsharded(files: Files) -> Iterator[SourceFact]:
    """Yield loaders that give each rank of a wrapped model the whole data set (``loader-unsharded``).

    order: ``shuffled``, ``in order``, or ``any order`` where the program may shuffle the samples itself. Passed over is
    what may be shared out in another way: streams, data sets that know ranks, data that is made up, loops that skip by
    rank. option: the test on one side of which alone the sampler knows no ranks. It is asked (``loader-doubted``) where
    the data set is not followed to its making, where the loader has a generator of its own, and where that side may
    be for one rank alone.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not may_be_wrapped(loop, kinds) or skips_by_rank(loop, kinds):
            continue
        loaders = batches_of(loop, kinds)
        options = [_find_option(each, kinds) for each in loaders]
        if not loaders or None in options or _is_alone(loop.scope.module, kinds):
            continue
        whole = all(_is_whole(each, kinds) for each in loaders)
        for each, option in zip(loaders, options, strict=True):
            if each.scope is None or each.call in told or (not whole and not _may_be_whole(each, kinds)):
                continue
            told.add(each.call)
            shuffled = _shuffles(each.call, kinds, each.scope)
            why = "unknown" if not whole else "option" if option and ALONE.search(option) else ""
            why = why or ("apart" if shuffled and find_keyword(each.call, "generator") is not None else "")
            order = "any order" if _may_shuffle(each.scope.module, kinds) else "in order"
            details = {"order": "shuffled" if shuffled else order}
            details |= {key: value for key, value in (("option", option), ("why", why)) if value}
            yield note_loader(each, "loader-doubted" if why else "loader-unsharded", loop, **details)


def _may_shuffle(module: Scope, kinds: Kinds) -> bool:
    """Whether a program calls what puts samples into an order of its own, such as ``frame.sample(frac=1)``."""
    return kinds.programs.any_file(module, _has_shuffle, kinds)


def _has_shuffle(member: Scope, kinds: Kinds) -> bool:
    return any(
        (each.func.attr if isinstance(each.func, ast.Attribute) else name) in SHUFFLES
        for each, _, name in kinds.programs.list_calls(member)
    )


def _find_option(loader: Value, kinds: Kinds) -> str | None:
    """Return the test on one side of which alone a loader's sampler knows no ranks; empty where it never does.

    None where it may always know them.
    """
    call, scope = loader.call, loader.scope
    if scope is None or may_give(call, scope, "sampler"):
        return None
    option = ""
    for name, place in (("sampler", 3), ("batch_sampler", 4)):
        sampler = find_keyword(call, name, place)
        found = list_inner_samplers(kinds.find(sampler, scope), kinds) if sampler is not None else ()
        plain = [each for each in found if _is_plain(each, kinds)]
        others = [each for each in found if not _is_plain(each, kinds)]
        if others:
            if any(not isinstance(each.made, ast.Call) for each in others):
                return None
            others = [each for each in others if not _may_be_plain(each)] or others
            tests = [_find_test(each, others, kinds) for each in plain if each.kind == "sampler"]
            # where it is about ranks, the plain one's side is for one
            test = next((each for each in tests if each is not None and not DISTRIBUTES.search(each)), None)
            if test is None:
                return None
            option = test
    return option


def _is_plain(sampler: Value, kinds: Kinds) -> bool:
    """Whether a sampler knows no ranks: one of torch's, or of a class of the files whose source is all known."""
    if sampler.kind == "none":
        return True
    if sampler.kind != "sampler" or sampler.scope is None:
        return False
    if sampler.owner is None:
        drawn = is_true(find_keyword(sampler.call, "replacement", 1))  # each rank draws samples of its own
        return sampler.name.rpartition(".")[2] in PLAIN and not drawn
    if speaks_of(sampler.call, about_shards, sampler.scope, kinds) or _takes_sampler(sampler, kinds):
        return False
    return all(_knows_no_ranks(each, kinds) for each in kinds.files.objects.bases(sampler.owner))


def _may_be_plain(sampler: Value) -> bool:
    """Whether nothing shows that a sampler knows ranks, as its name or its arguments would."""
    if sampler.name.startswith("torch.utils.data."):
        return "Distributed" not in sampler.name
    return sampler.owner is None and not any(map(about_shards, (sampler.name, *names_in(sampler.call))))


def _takes_sampler(sampler: Value, kinds: Kinds) -> bool:
    """Whether a sampler is given what may be another one, which may know the ranks."""
    given = [*sampler.call.args, *(each.value for each in sampler.call.keywords)]
    return any(isinstance(each, ast.Starred) for each in given) or (
        (
            sampler.scope is not None
            and any(value.kind == "sampler" for each in given for value in kinds.find(each, sampler.scope))
        )
        or any("sampler" in name.lower() for each in given for name in names_in(each))
    )


def _knows_no_ranks(owner: Scope, kinds: Kinds) -> bool:
    """Whether nothing in a class of samplers is about ranks: its names, what it calls, and what it inherits from."""
    node, home = owner.node, owner.outer or owner
    if not isinstance(node, ast.ClassDef) or any(map(about_shards, names_in(node))):
        return False
    for base in node.bases:
        name = kinds.files.dotted(base.value if isinstance(base, ast.Subscript) else base, home) or ""
        last = name.rpartition(".")[2]
        if kinds.files.find_class(base, home) is None and last not in BASES:
            return False
    return all(
        isinstance(call.func, ast.Attribute)
        or kinds.files.function(call.func, method) is not None
        or (kinds.files.dotted(call.func, method) or "").split(".")[0] in KNOWN_ROOTS
        for method in owner.functions.values()
        for call in find_calls(method)
    )


def _find_test(plain: Value, others: Sequence[Value], kinds: Kinds) -> str | None:
    """Return the innermost test that parts one sampler from another, made in the same function, or None."""
    if plain.scope is None or any(each.scope is not plain.scope for each in others):
        return None
    made = [plain.call, *(each.call for each in others)]
    for node in own_nodes(plain.scope.node):
        if isinstance(node, ast.IfExp) and all(each in (node.body, node.orelse) for each in made):
            return ast.unparse(node.test)
    flow = kinds.flow(plain.scope)
    own = flow.spot(plain.call)
    spots = [flow.spot(each.call) for each in others]
    if own is None or not all(each is not None and own.excludes(each) for each in spots):
        return None
    parting = [number for number, side in own.blocks
               if any(each is not None and dict(each.blocks).get(number, side) != side for each in spots)]  # fmt: skip
    statements = {spot.number: statement for statement, spot in flow.statements}
    statement = statements.get(parting[-1]) if parting else None
    if not isinstance(statement, ast.If) or isinstance(statement.test, ast.Constant):
        return None
    return ast.unparse(statement.test)


def _is_whole(loader: Value, kinds: Kinds) -> bool:
    """Whether a loader surely goes through a whole data set, the same on each rank, if its sampler knows no ranks."""
    data = find_keyword(loader.call, "dataset", 0)
    if data is None or loader.scope is None or find_keyword(loader.call, "worker_init_fn") is not None:
        return False
    if may_give(loader.call, loader.scope, "worker_init_fn"):
        return False
    sets = kinds.all_of(data, loader.scope, "dataset")
    return bool(sets) and all(is_the_same(each, kinds) for each in sets)


def _may_be_whole(loader: Value, kinds: Kinds) -> bool:
    """Whether nothing in the making of a loader and of its data speaks of ranks."""
    scope = loader.scope
    if scope is None or speaks_of(loader.call, about_shards, scope, kinds):
        return False
    data = find_keyword(loader.call, "dataset", 0)
    sets = kinds.find(data, scope) if data is not None else ()
    owners = [each.owner for each in sets if each.owner is not None]
    return data is not None and not any(
        about_shards(name) or name == "IterableDataset" for owner in owners for name in names_in(owner.node)
    )


def is_the_same(data: Value, kinds: Kinds) -> bool:
    """Whether a data set is the same on each rank, by all that is seen of its making."""
    if data.scope is None or speaks_of(data.call, about_shards, data.scope, kinds):
        return False
    if data.owner is None:
        return not speaks_of(data.call, about_random, data.scope, kinds) or _is_drawn_from_one_seed(
            data, kinds
        )
    if any(map(about_shards, names_in(data.owner.node))):
        return False
    maker, getter = (data.owner.functions.get(name) for name in ("__init__", "__getitem__"))
    if maker is not None and not RANDOM.isdisjoint(_names_of_draws(maker.node)):
        return False
    # what is drawn in the place of the sample of an index differs where ranks are seeded by their number
    draws = getter is not None and not RANDOM.isdisjoint(names_in(getter.node)) and not _takes_index(getter)
    return not (draws and is_seeded_apart(data.scope.module, kinds))


def _is_drawn_from_one_seed(data: Value, kinds: Kinds) -> bool:
    """Whether all that is drawn for a data set of tensors is seeded before, and not by the rank."""
    if data.scope is None:
        return False
    given = [*data.call.args, *(each.value for each in data.call.keywords)]
    calls = [pair for each in given for pair in slice_of(each, data.scope, kinds).calls]
    draws = [pair for pair in calls if about_random(name_last(pair[0].func))]
    return bool(draws) and all(_is_seeded(call, scope, kinds) for call, scope in draws)


def _is_seeded(draw: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether a draw has a generator with a seed, or the module or its own function seeds all random numbers before.

    By a seed that all ranks have.
    """
    if name_last(draw.func) == "arange":
        return True
    generator = find_keyword(draw, "generator")
    if generator is not None:
        seeded = "manual_seed" in slice_of(generator, scope, kinds).words
        return seeded and not speaks_of(generator, about_shards, scope, kinds)
    if is_seeded_apart(scope.module, kinds):
        return False
    for each in dict.fromkeys((scope, scope.module)):
        flow = kinds.flow(each)
        own = flow.spot(draw)
        for call, name in name_calls(each, kinds.files):
            spot = flow.spot(call) if name in SEEDS or OF_SEEDS.search(name) else None
            if spot is not None and (own is None or spot.surely_before(own)):
                return True
    return False


def _takes_index(getter: Scope) -> bool:
    """Whether a ``__getitem__`` does anything with the index that it is given."""
    arguments = getattr(getter.node, "args", None)
    index = arguments.args[1].arg if isinstance(arguments, ast.arguments) and len(arguments.args) > 1 else ""
    return any(isinstance(each, ast.Name) and each.id == index for each in ast.walk(getter.node))


def _names_of_draws(node: ast.AST) -> Iterator[str]:
    """Yield the names in a function, but of calls that only put what is there into another order."""
    ordering = {
        inner
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and each.attr in ORDERING
        for inner in ast.walk(each.value)
    }
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)) and each not in ordering:
            yield each.id if isinstance(each, ast.Name) else each.attr


def _shuffles(call: ast.Call, kinds: Kinds, scope: Scope) -> bool:
    sampler = find_keyword(call, "sampler", 3) or find_keyword(call, "batch_sampler", 4)
    found = list_inner_samplers(kinds.find(sampler, scope), kinds) if sampler is not None else ()
    if any(each.name.endswith("RandomSampler") for each in found):
        return True
    shuffle = find_keyword(call, "shuffle", 2)
    if shuffle is None and may_give(call, scope, "shuffle"):
        return True
    return shuffle is not None and not (isinstance(shuffle, ast.Constant) and not shuffle.value)


def _is_alone(module: Scope, kinds: Kinds) -> bool:
    """Whether the process groups of a program are made for one rank."""
    sizes = [
        fold(find_keyword(call, "world_size"), scope, kinds.files)
        for call, scope, _ in kinds.programs.calls(module, JOINS)
    ]
    return bool(sizes) and all(size == "1" for size in sizes)


@check("DAT001", family="source", needs=("sources",), id="lint.sharded", commands=LINT)
def tell_unsharded(evidence: Evidence) -> Iterable[Finding]:
    """The loader of a training that is wrapped gives each rank all data."""
    for fact in facts_of(evidence, "loader-unsharded"):
        orders = {"shuffled": ", each in its own order", "in order": ", in the same order"}
        order, option = fact.details["order"], fact.details.get("option")
        where = f" on one side of `if {option}`: there" if option else ":"
        yield tell_fact(
            fact,
            f"The DataLoader at {name_line(fact.place)} has no DistributedSampler{where} each rank trains on the "
            f"whole dataset{orders.get(order, '')}.",
            Fix(
                "give each rank its own shard of the data",
                code=_shard(fact.place.text, shuffled=order != "in order"),
            ),
            why=(
                "the loop that trains the wrapped or sharded model iterates over it, and nothing shards "
                "the dataset by rank"
            ),
            severity=None if order == "in order" and not option else "warning",
        )

    known = {fact.place for fact in facts_of(evidence, "sampler-plain") if fact.details["whole"]}
    for fact in facts_of(evidence, "loader-doubted"):
        if fact.place in known:
            continue
        asked = {
            "apart": " has no DistributedSampler, and each rank shuffles the whole dataset in its own order: is an "
            "epoch meant to train on it once per rank?",
            "option": f" has no DistributedSampler on one side of `if {fact.details.get('option')}`: is that side for "
            "one rank only?",
            "unknown": " has no DistributedSampler: is the dataset sharded by rank elsewhere?",
        }
        yield tell_question(
            fact,
            f"The DataLoader at {name_line(fact.place)}{asked[fact.details['why']]}",
            Fix("give each rank its own shard of the data", code=_SAMPLER),
            why=(
                "the loop that trains the wrapped or sharded model iterates over it, and no file that was read "
                "shards the dataset"
            ),
        )


def _shard(text: str, *, shuffled: bool) -> str:
    """Return the loader of a line with a sampler."""
    statement = read_line(text)
    call = find_call(statement, "DataLoader")
    if statement is None or call is None or not call.args:
        return _SAMPLER
    data = ast.unparse(call.args[0])
    if any(each.arg == "batch_sampler" for each in call.keywords):
        return (
            f"sampler = DistributedSampler({data}, shuffle={shuffled})\n"
            "batch_sampler = BatchSampler(sampler, batch_size, drop_last=True)\n"
            "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"
        )
    set_keyword(call, "shuffle", None)
    set_keyword(call, "sampler", "sampler")
    line = ast.unparse(statement) if name_target(statement) else f"loader = {ast.unparse(call)}"
    return (
        f"sampler = DistributedSampler({data}, shuffle={shuffled})\n{line}\n"
        "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"
    )
