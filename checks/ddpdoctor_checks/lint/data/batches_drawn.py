"""DAT001: each rank draws its batches itself, and all of them with one seed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_keyword, names_in, own_nodes
from ddpdoctor.source.sameness.seeding import is_seeded_alike
from ddpdoctor.source.training.graphs import slice_of
from ddpdoctor.source.training.train_loops import about_shards, skips_by_rank, training_loops
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

DRAWS = {
    "torch.randint": "torch",
    "torch.randperm": "torch",
    "random.sample": "random",
    "random.randint": "random",
    "random.randrange": "random",
    "random.choices": "random",
    "numpy.random.randint": "numpy",
    "numpy.random.choice": "numpy",
    "numpy.random.permutation": "numpy",
}
"""Functions that draw which samples are taken, and the library whose generator they draw from."""


@lint_rule("batches-drawn-alike", reads="files")
def find_drawn_alike(files: Files) -> Iterator[SourceFact]:
    """Yield draws of the samples that a wrapped model is trained on, the same on all ranks (``batches-drawn-alike``).

    The generator that is drawn from is seeded, and nowhere by the rank. The forward pass is beside it. Nothing where a
    function that the batch comes through speaks of ranks, where the draw has a generator of its own, or where what is
    drawn is the data itself.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if skips_by_rank(loop, kinds):
            continue
        for forward in loop.wrapped:
            behind = [slice_of(each, forward.scope, kinds) for each in forward.call.args]
            calls = [pair for each in behind for pair in each.calls]
            homes = {home for _, home in calls if home is not loop.scope}
            if any(about_shards(name) for home in homes for name in names_in(home.node)):
                continue
            for call, home in calls:
                library = DRAWS.get(files.dotted(call.func, home) or "")
                if library is None or call in told or find_keyword(call, "generator") is not None:
                    continue
                if _takes_by(call, home) and is_seeded_alike(loop.scope.module, kinds, library):
                    told.add(call)
                    beside = (RelatedPlace("noticed", forward.scope.place(forward.call)),)
                    yield SourceFact("batches-drawn-alike", home.place(call), beside, certain=False)


def _takes_by(draw: ast.Call, scope: Scope) -> bool:
    """Whether what is drawn says which samples are taken: it is an index, or a loop goes through it."""
    names = {name for name, values in scope.bound.items() if any(each is draw for each in values)}
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            taken: ast.expr = node.slice
        elif isinstance(node, (ast.For, ast.comprehension)):
            taken = node.iter
        else:
            continue
        if any(each is draw or getattr(each, "id", None) in names for each in ast.walk(taken)):
            return True
    return False


@check("DAT001", family="source", needs=NEEDS, id="lint.batches_drawn", commands=LINT)
def tell_drawn_alike(evidence: Evidence) -> Iterable[Finding]:
    """All ranks draw the same batches."""
    for fact in facts_of(evidence, "batches-drawn-alike"):
        yield tell_fact(
            fact,
            f"The samples of each batch are drawn at {name_line(fact.place)} from a generator that all ranks seed "
            f"with one value: each rank trains on the same batches ({name_line(fact.related[0].place)}).",
            Fix("seed by the rank", code="torch.manual_seed(seed + dist.get_rank())"),
            why="all calls that seed it give a number that does not depend on the rank",
            severity="warning",
        )
