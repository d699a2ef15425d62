"""DAT006: loader workers are seeded by their own number, which is the same on all ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_keyword, names_in
from ddpdoctor.source.training.train_loops import about_shards, loaders_of, speaks_of, training_loops
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

PLAIN_CALLS = frozenset({"int", "abs", "hash", "len", "sum", "pow", "max", "min"})


@lint_rule("workers-seeded-alike", reads="files")
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
        if seed.args and number in set(names_in(seed.args[0])) and not varies and _is_plain(seed.args[0]):
            return None if speaks_of(seed.args[0], about_shards, home, kinds) else (seed, home)
    return None


def _is_plain(seed: ast.expr) -> bool:
    """Whether a seed is made of numbers that are there: a call may return what differs, as the state of numpy does."""
    called = [each.func for each in ast.walk(seed) if isinstance(each, ast.Call)]
    return all(isinstance(each, ast.Name) and each.id in PLAIN_CALLS for each in called)


@check("DAT006", family="source", needs=("sources",), id="lint.workers", commands=LINT)
def tell_workers(evidence: Evidence) -> Iterable[Finding]:
    """Loader workers are seeded by their own number, which is the same on all ranks."""
    for fact in facts_of(evidence, "workers-seeded-alike"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} seeds each DataLoader worker by its id alone: workers "
            "of different ranks draw the same random numbers, and the same again in each epoch.",
            Fix(
                "use torch's own worker seed, which differs across ranks that are seeded differently",
                code=f"{function}(torch.initial_seed() % 2**32)",
            ),
            why="neither the rank nor the epoch is part of the seed",
            role="advice",
        )
