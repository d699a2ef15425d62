"""DAT007: an evaluation counts the samples twice by which a sampler fills up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_keyword, is_spelled_out, names_in
from ddpdoctor.source.training.passes import find_passes, joins_results
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

PADDING = re.compile("pad|duplicat|dedup|unique|remainder|uneven|truncat|for_metrics|aux_", re.IGNORECASE)
"""Parts of names of what knows that a sampler repeats samples."""


@lint_rule("evaluation-padded", reads="files")
def find_padded(files: Files) -> Iterator[SourceFact]:
    """Yield samplers that may repeat samples, where the results of an evaluation are joined (``evaluation-padded``)."""
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for each in find_passes(kinds):
        if each.trains or any(map(_drops, each.samplers)) or not joins_results(each.scope.module, kinds):
            continue
        sampler = each.samplers[0]
        if sampler.scope is None or sampler.call in told or _knows_of_padding(each.scope.module, kinds):
            continue
        told.add(sampler.call)
        noticed = (RelatedPlace("noticed", each.scope.place(each.node)),)
        yield SourceFact("evaluation-padded", sampler.scope.place(sampler.call), noticed)


def _drops(sampler: Value) -> bool:
    """Whether a sampler is told to drop samples, or it cannot be told what it is told."""
    given = find_keyword(sampler.call, "drop_last", 5)
    return not is_spelled_out(sampler.call) or (
        given is not None and not (isinstance(given, ast.Constant) and given.value is False)
    )


def _knows_of_padding(module: Scope, kinds: Kinds) -> bool:
    for member in kinds.programs.members(module):
        if any(PADDING.search(name) for name in names_in(member.node)):
            return True
        for node in ast.walk(member.node):
            if isinstance(node, ast.Slice) and node.upper is not None and "len" in names_in(node.upper):
                return True
    return False


@check("DAT007", family="source", needs=("sources",), id="lint.evaluation", commands=LINT)
def tell_evaluation_padded(evidence: Evidence) -> Iterable[Finding]:
    """A DistributedSampler shares out the data of an evaluation whose counts are joined."""
    for fact in facts_of(evidence, "evaluation-padded"):
        yield tell_fact(
            fact,
            f"The sampler at {name_line(fact.place)} repeats samples when their number is not a multiple of "
            f"the number of ranks; the loop at {name_line(fact.related[0].place)} counts these twice.",
            Fix(
                "let each rank evaluate its own shard, without padding",
                code="part = Subset(dataset, range(rank, len(dataset), world_size))",
            ),
            why="the counts are combined across ranks, and nothing cuts them to the length of the dataset",
            severity="info",
            role="advice",
        )
