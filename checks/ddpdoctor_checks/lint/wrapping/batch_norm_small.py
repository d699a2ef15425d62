"""DDP013: BatchNorm in a wrapped model whose loader gives few samples."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_keyword
from ddpdoctor.source.training.norms import speaks_of_sync, wraps_norms
from ddpdoctor.source.training.train_loops import loaders_of, training_loops
from ddpdoctor_checks.common.wording import count_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.training.replicas import buffers

FEW_SAMPLES = 8
"""A batch of fewer on each rank is small for BatchNorm; the same number as in a live run."""


@lint_rule("batch-norm-small", reads="files")
def find_small_batches(files: Files) -> Iterator[SourceFact]:
    """Yield wrapped models with BatchNorm that are trained on few samples on each rank (``batch-norm-small``).

    size: of the batch.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or not loop.wrapped:
            continue
        module = loop.scope.module
        sizes = [_batch_size(each) for each in loaders_of(loop.node.iter, loop.scope, kinds)]
        small = [size for size in sizes if size is not None and size < FEW_SAMPLES]
        if not small or len(small) != len(sizes) or speaks_of_sync(module, kinds):
            continue
        for value in (each for forward in loop.wrapped for each in forward.values):
            if value.call in told or value.scope is None or not wraps_norms(value):
                continue
            told.add(value.call)
            noticed = RelatedPlace("noticed", loop.scope.place(loop.node))
            place = value.scope.place(value.call)
            yield SourceFact("batch-norm-small", place, (noticed,), {"size": str(max(small))})


def _batch_size(loader: Value) -> int | None:
    """Return the batch size of a loader where the script spells it out."""
    size = find_keyword(loader.call, "batch_size", 1)
    if isinstance(size, ast.Name) and loader.scope is not None:
        found = loader.scope.lookup(size.id)
        size = found[1][0] if found is not None and len(found[1]) == 1 else None
    return size.value if isinstance(size, ast.Constant) and type(size.value) is int else None


@check("DDP013", family="source", needs=("sources",), id="lint.batch_norm", commands=LINT)
def tell_small_batches(evidence: Evidence) -> Iterable[Finding]:
    """BatchNorm in a wrapped model whose loader gives few samples."""
    for fact in facts_of(evidence, "batch-norm-small"):
        size = int(fact.details["size"])
        yield tell_fact(
            fact,
            f"The model that is wrapped at {name_line(fact.place)} has BatchNorm, which normalizes over the "
            f"{count_of(size, 'sample')} of each rank and not over those of all ranks.",
            Fix(
                "on GPUs synchronize BatchNorm across ranks",
                code="model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)   # before wrapping",
            ),
            why=(
                "the loader's batch size is a number in the source, and nothing in the program mentions "
                "SyncBatchNorm"
            ),
            severity=None if size < buffers.VERY_FEW else "info",
            role="advice",
        )
