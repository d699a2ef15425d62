"""Rules of random numbers that have to be the same on all ranks, or have to differ."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.kinds import Kinds, kinds_of
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.steps import (
    about_shards,
    loaders_of,
    speaks_of,
    training_loops,
)
from ddpdoctor.source.walking import find_calls, find_keyword, is_spelled_out, names_in

SPLITS = {
    "torch.utils.data.random_split": ("generator", 2),
    "torch.utils.data.dataset.random_split": ("generator", 2),
    "sklearn.model_selection.train_test_split": ("random_state", None),
}
"""Functions that split at random, and the argument that says how."""
SEEDS = ("seed", "determin", "reproduc", "random_state", "set_state", "set_rng")
"""Parts of names of functions that seed."""
ELSEWHERE = ("setup", "init", "config", "prepare", "environment", "bootstrap")
"""Parts of names of functions that may seed, where they were not given."""


def find_splits(files: Files) -> Iterator[SourceFact]:
    """Yield splits at random that differ over ranks (``split-by-rank``).

    names: ``seeded`` (by rank) or ``unseeded``, the function, and its arguments as they stand.
    """
    kinds = kinds_of(files)
    for module in distributed_modules(kinds):
        for scope in module.walk():
            if not any(files.dotted(each.func, scope) in SPLITS for each in find_calls(scope)):
                continue
            for call in (node for node, _ in _calls_on(scope, kinds)):
                name = files.dotted(call.func, scope) or ""
                if (
                    name not in SPLITS
                    or not is_spelled_out(call)
                    or find_keyword(call, *SPLITS[name]) is not None
                ):
                    continue
                way = find_seeding(module, kinds)
                if way is not None:
                    place = scope.place(call)
                    yield SourceFact("split-by-rank", place, names=(way, name, show_arguments(call)))


def show_arguments(call: ast.Call) -> str:
    """Return what a call is given, as it stands."""
    return ", ".join(map(ast.unparse, (*call.args, *call.keywords)))


def distributed_modules(kinds: Kinds) -> list[Scope]:
    """Return the modules of programs that train a wrapped model."""
    found: dict[Scope, None] = {}
    for loop in training_loops(kinds):
        if loop.wrapped:
            module = loop.scope.module
            found.update(dict.fromkeys(kinds.programs.members(module)))
    return list(found)


def _calls_on(scope: Scope, kinds: Kinds) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls of a scope that each distributed run makes."""
    flow = kinds.flow(scope)
    for statement, spot in flow.statements:
        if spot.blocks or not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)):
            continue
        yield from ((node, scope) for node in ast.walk(statement) if isinstance(node, ast.Call))


def find_seeding(module: Scope, kinds: Kinds) -> str | None:
    """Return why random numbers differ over ranks, ``seeded`` or ``unseeded``; None where they may be the same."""
    by_rank = False
    for call, scope, name in kinds.programs.calls(module):
        last = (name or ast.unparse(call.func)).rpartition(".")[2].lower()
        if _is_of_generator(call, scope):
            continue
        if any(word in last for word in SEEDS):
            given_rank = any(speaks_of(each, about_shards, scope, kinds) for each in call.args)
            if not given_rank or last not in (
                "manual_seed",
                "seed",
                "seed_everything",
                "set_seed",
                "manual_seed_all",
            ):
                return None
            by_rank = True
        elif (
            any(word in last for word in ELSEWHERE)
            and kinds.files.function(call.func, scope) is None
            and kinds.files.find_class(call.func, scope) is None
            and name.split(".")[0] not in ("torch", "super", "os", "logging", "wandb")
            and not isinstance(call.func, ast.Attribute)
        ):
            return None
    return "seeded" if by_rank else "unseeded"


def _is_of_generator(call: ast.Call, scope: Scope) -> bool:
    """Whether it seeds an object, such as a ``torch.Generator``, and not what all draw from."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "manual_seed":
        return False
    owner = call.func.value
    imported = isinstance(owner, ast.Name) and any(owner.id in each.imports for each in scope.outwards())
    return not imported and not (isinstance(owner, ast.Attribute) and owner.attr == "cuda")


def find_workers(files: Files) -> Iterator[SourceFact]:
    """Yield functions that seed a loader's workers by their number alone (``workers-seeded-alike``).

    names: the function that seeds.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not loop.wrapped or not isinstance(loop.node, ast.For):
            continue
        for loader in loaders_of(loop.node.iter, loop.scope, kinds):
            starter = find_keyword(loader.call, "worker_init_fn")
            if starter is None or loader.scope is None or starter in told:
                continue
            told.add(starter)
            found = _find_seed(starter, loader.scope, kinds)
            if found is not None:
                seed, scope = found
                place = scope.place(seed)
                where = loader.scope.place(loader.call)
                name = kinds.files.dotted(seed.func, scope) or ""
                yield SourceFact("workers-seeded-alike", place, (RelatedPlace("noticed", where),), (name,))


def _find_seed(starter: ast.expr, scope: Scope, kinds: Kinds) -> tuple[ast.Call, Scope] | None:
    """Return the call that seeds a worker by its number and nothing that differs over ranks or epochs."""
    function = kinds.files.function(starter, scope)
    if function is not None and len(function.parameters) == 1:
        body, number, home = function.node.body, function.parameters[0], function
    elif isinstance(starter, ast.Lambda) and len(starter.args.args) == 1:
        body, number, home = [ast.Expr(starter.body)], starter.args.args[0].arg, scope
    else:
        return None
    calls = [node for each in body for node in ast.walk(each) if isinstance(node, ast.Call)]
    seeds = [call for call in calls if (kinds.files.dotted(call.func, home) or "").endswith("seed")]
    for seed in seeds:
        words = [name for each in body for name in names_in(each)]
        varies = any(
            "rank" in w or "initial_seed" in w or "epoch" in w or "info" in w or "time" in w for w in words
        )
        if seed.args and number in set(names_in(seed.args[0])) and not varies:
            return None if speaks_of(seed.args[0], about_shards, home, kinds) else (seed, home)
    return None
