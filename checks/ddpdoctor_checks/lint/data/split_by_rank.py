"""DAT004: a split at random that each rank draws for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.flow import LOOP, OFF
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.walking import (
    find_keyword,
    is_spelled_out,
    name_last,
    show_arguments,
)
from ddpdoctor.source.sameness.seeding import find_seeding, is_by_rank
from ddpdoctor.source.training.train_loops import DEEPEST, about_shards, distributed_modules, speaks_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import seed_draw, tell_seeds

SPLITS = {
    "torch.utils.data.random_split": ("generator", 2, "torch"),
    "torch.utils.data.dataset.random_split": ("generator", 2, "torch"),
    "sklearn.model_selection.train_test_split": ("random_state", None, "numpy"),
}
"""Functions that split at random, the argument that says how, and whose random numbers they draw otherwise."""


@lint_rule("split-by-rank", reads="files")
def find_splits(files: Files) -> Iterator[SourceFact]:
    """Yield splits at random that differ over ranks (``split-by-rank``).

    way: ``seeded`` (by rank), ``unseeded`` or ``generator`` (given one that is seeded by rank). function: that draws.
    given: its arguments as they stand.
    """
    kinds = kinds_of(files)
    ranks = RankReader(files)
    splitting = kinds.programs.scopes_calling(SPLITS)
    for module in distributed_modules(kinds):
        for scope in module.walk():
            if scope not in splitting:
                continue
            for call in _calls_on(scope, kinds):
                name = files.dotted(call.func, scope) or ""
                if name not in SPLITS or not is_spelled_out(call):
                    continue
                keyword, position, library = SPLITS[name]
                generator = find_keyword(call, keyword, position)
                if is_guarded(scope, kinds):
                    continue
                if any(speaks_of(e, about_shards, scope, kinds) for e in call.args if e is not generator):
                    continue  # the rank splits what is its own
                if generator is None:
                    way = find_seeding(module, kinds, library)
                else:
                    way = "generator" if _is_seeded_by_rank(generator, scope, ranks) else None
                if way is not None:
                    place = scope.place(call)
                    details = {"way": way, "function": name, "given": show_arguments(call)}
                    yield SourceFact("split-by-rank", place, details=details)


def _is_seeded_by_rank(node: ast.expr, scope: Scope, ranks: RankReader) -> bool:
    """Whether a generator, or the seed that stands for one, differs across ranks."""
    if isinstance(node, ast.Name):
        home, values = scope.lookup(node.id) or (scope, [])
        if len(values) != 1 or values[0] is UNKNOWN:
            return False
        node, scope = values[0], home
    if isinstance(node, ast.Call) and node.args:
        seeds = name_last(node.func) in ("manual_seed", "RandomState", "default_rng", "Random")
        return seeds and is_by_rank(node.args[0], scope, ranks)
    return is_by_rank(node, scope, ranks)


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


@check("DAT004", family="source", needs=("sources",), id="lint.splits", commands=LINT)
def tell_splits(evidence: Evidence) -> Iterable[Finding]:
    """A split at random that each rank draws for itself."""
    for fact in facts_of(evidence, "split-by-rank"):
        way, function, given = (fact.details[name] for name in ("way", "function", "given"))
        own = way == "generator"
        why = "its generator is seeded by the rank" if own else tell_seeds(way)
        yield tell_fact(
            fact,
            f"{function.rpartition('.')[2]} at {name_line(fact.place)} gives each rank a different split, "
            f"because {why}: one rank trains on what another validates on.",
            Fix(
                "draw the split with one seed on all ranks",
                code="generator = torch.Generator().manual_seed(0)" if own else seed_draw(function, given),
            ),
            why="a DistributedDataParallel model is trained in this program, and "
            + ("the seed of the generator has the rank in it" if own else "the call has no generator"),
            severity="warning" if way == "unseeded" else None,
        )
