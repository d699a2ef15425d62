"""DAT003: a stream gives each rank every n-th file or sample, and a loop goes through it to its end."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import is_any_collective
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_keyword, names_in, own_nodes
from ddpdoctor.source.training.train_loops import TrainingLoop, batches_of, training_loops
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_question

RANKS = re.compile(r"world|num_replicas|nranks|num_ranks|get_world_size|num_shards|nprocs", re.IGNORECASE)
"""Names of the number of ranks."""
EVENS = re.compile(
    r"join|pad|trunc|even|equal|repeat|cycle|infinite|forever|steps_per|num_steps|max_steps|islice|drop|min_len|total_len",
    re.IGNORECASE,
)
"""Names by which a stream, or the loop over it, may give all ranks the same number of batches."""


@lint_rule("shards-doubted", reads="files")
def find_uneven_shards(files: Files) -> Iterator[SourceFact]:
    """Yield where a stream takes every n-th file or sample by rank, and a wrapped model is trained to its end.

    Ranks whose part is shorter leave the loop, and the others wait in their next backward pass
    (https://docs.pytorch.org/tutorials/advanced/generic_join.html). The loop is beside it (``shards-doubted``). Nothing
    where a name in either may make the parts equal, where the loop can be left before, or where ranks ask each other
    in it.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not loop.wrapped or not isinstance(loop.node, ast.For) or _may_be_even(loop, kinds):
            continue
        for loader in batches_of(loop, kinds):
            for data in _list_streams(loader, kinds):
                share = _find_share(data, kinds)
                if share is not None and share[0] not in told:
                    told.add(share[0])
                    beside = (RelatedPlace("noticed", loop.scope.place(loop.node)),)
                    yield SourceFact("shards-doubted", share[1].place(share[0]), beside, certain=False)


def _may_be_even(loop: TrainingLoop, kinds: Kinds) -> bool:
    """Whether a loop may end after the same number of batches on all ranks, by the names in it and around it."""
    leaves = any(isinstance(each, (ast.Break, ast.Return)) for each in ast.walk(loop.node))
    asks = any(is_any_collective(call, scope, kinds.files) for call, scope in loop.calls)
    withs = [each for each in own_nodes(loop.scope.node) if isinstance(each, ast.With)]
    around = [item for each in withs if any(n is loop.node for n in ast.walk(each)) for item in each.items]
    return (
        leaves or asks or any(EVENS.search(name) for each in around for name in names_in(each.context_expr))
    )


def _list_streams(loader: Value, kinds: Kinds) -> list[Value]:
    data = find_keyword(loader.call, "dataset", 0) if loader.scope is not None else None
    sets = (
        kinds.all_of(data, loader.scope, "iterable") if data is not None and loader.scope is not None else ()
    )
    return [each for each in sets if each.owner is not None and "__iter__" in each.owner.functions]


def _find_share(data: Value, kinds: Kinds) -> tuple[ast.expr, Scope] | None:
    """Return where a stream takes every n-th element by rank; None where a name in it may make the parts equal."""
    owner = data.owner
    if owner is None or any(EVENS.search(name) for name in names_in(owner.node)):
        return None
    if any(name in ("__len__", "__getitem__") for name in owner.functions):
        return None
    for method in owner.functions.values():
        for node in own_nodes(method.node):
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Slice)
                and node.slice.step is not None
            ):
                if any(RANKS.search(name) for name in names_in(node.slice.step)):
                    return node, method
            elif isinstance(node, ast.Compare) and isinstance(node.left, ast.BinOp):
                modulo = isinstance(node.left.op, ast.Mod) and any(
                    RANKS.search(name) for name in names_in(node.left.right)
                )
                if modulo and any("rank" in name for side in node.comparators for name in names_in(side)):
                    return node, method
    return None


@check("DAT003", family="source", needs=NEEDS, id="lint.shards_uneven", commands=LINT)
def ask_uneven_shards(evidence: Evidence) -> Iterable[Finding]:
    """A stream may give some ranks more batches than others."""
    for fact in facts_of(evidence, "shards-doubted"):
        yield tell_question(
            fact,
            f"The stream takes a share by rank at {name_line(fact.place)}, and the loop at "
            f"{name_line(fact.related[0].place)} trains until its end: do all ranks get the same number of batches?",
            Fix(
                "let ranks that end first shadow the collectives of the others",
                code="with Join([model]):\n    for batch in loader:\n        ...",
            ),
            why="files and samples are not counted in the source, and a rank that ends first leaves the others waiting",
        )
