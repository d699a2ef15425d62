"""Rules of random numbers that have to be the same on all ranks, or have to differ."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.flow import LOOP, OFF
from ddpdoctor.source.kinds import Kinds, kinds_of
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.seeding import find_seeding
from ddpdoctor.source.steps import (
    DEEPEST,
    about_shards,
    loaders_of,
    speaks_of,
    training_loops,
)
from ddpdoctor.source.walking import find_calls, find_keyword, is_spelled_out, names_in

SPLITS = {
    "torch.utils.data.random_split": ("generator", 2, "torch"),
    "torch.utils.data.dataset.random_split": ("generator", 2, "torch"),
    "sklearn.model_selection.train_test_split": ("random_state", None, "numpy"),
}
"""Functions that split at random, the argument that says how, and whose random numbers they draw otherwise."""


def find_splits(files: Files) -> Iterator[SourceFact]:
    """Yield splits at random that differ over ranks (``split-by-rank``).

    way: ``seeded`` (by rank) or ``unseeded``. function: that draws. given: its arguments as they stand.
    """
    kinds = kinds_of(files)
    for module in distributed_modules(kinds):
        for scope in module.walk():
            if not any(files.dotted(each.func, scope) in SPLITS for each in find_calls(scope)):
                continue
            for call in _calls_on(scope, kinds):
                name = files.dotted(call.func, scope) or ""
                if name not in SPLITS or not is_spelled_out(call):
                    continue
                keyword, position, library = SPLITS[name]
                if find_keyword(call, keyword, position) is not None or is_guarded(scope, kinds):
                    continue
                if any(speaks_of(each, about_shards, scope, kinds) for each in call.args):
                    continue  # the rank splits what is its own
                way = find_seeding(module, kinds, library)
                if way is not None:
                    place = scope.place(call)
                    details = {"way": way, "function": name, "given": show_arguments(call)}
                    yield SourceFact("split-by-rank", place, details=details)


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


def _calls_on(scope: Scope, kinds: Kinds) -> Iterator[ast.Call]:
    """Yield the calls of a scope that each distributed run makes, but for those of which one part is taken at once."""
    for statement, spot in kinds.flow(scope).statements:
        if spot.blocks or not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)):
            continue
        nodes = list(ast.walk(statement))
        taken = {id(node.value) for node in nodes if isinstance(node, ast.Subscript)}
        yield from (node for node in nodes if isinstance(node, ast.Call) and id(node) not in taken)


def is_guarded(scope: Scope, kinds: Kinds, depth: int = 0) -> bool:
    """Whether a function is called below a test, so that some ranks may not run it."""
    for call, home in kinds.callers(scope) if depth < DEEPEST else ():
        spot = kinds.flow(home).spot(call)
        if spot is None or any(side not in (LOOP, OFF) for _, side in spot.blocks):
            return True
        if is_guarded(home, kinds, depth + 1):
            return True
    return False


def find_workers(files: Files) -> Iterator[SourceFact]:
    """Yield functions that seed a loader's workers by their number alone (``workers-seeded-alike``).

    function: that seeds.
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
                related = (RelatedPlace("noticed", where),)
                yield SourceFact("workers-seeded-alike", place, related, {"function": name})


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
