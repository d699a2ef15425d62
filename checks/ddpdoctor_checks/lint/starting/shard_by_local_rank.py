"""DAT001: a sampler counts all ranks, and is given the rank in the node."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS, SAMPLERS
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.local_ranks import ONE_NODE, STANDALONE, is_local_rank, joins_by_local_rank
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import Trace
from ddpdoctor.source.resolve.walking import find_keyword, name_last
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact


@lint_rule("shard-by-local-rank", reads="program")
def find_shards_by_local_rank(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield samplers over all ranks that are given the rank in the node (``shard-by-local-rank``).

    rank: how it is written. Nothing where a script knows only one node.
    """
    steps = [step for step in trace.steps if step.call is not None and step.name in SAMPLERS]
    if not steps or not trace.has_peers:
        return
    if kinds_of(files).programs.any_file(trace.start.module, _knows_one_node):
        return
    joins = (step.call for step in trace.steps if step.name in JOINS and step.call is not None)
    if any(map(joins_by_local_rank, joins)):
        return
    ways = ways_of(files, trace)
    for step in steps:
        assert step.call is not None
        rank, replicas = find_keyword(step.call, "rank", 2), find_keyword(step.call, "num_replicas", 1)
        whole = replicas is None or _is_world(replicas)
        if whole and rank is not None and is_local_rank(rank, step.scope, files):
            yield ways.tell("shard-by-local-rank", step, rank=ast.unparse(rank))


def _knows_one_node(member: Scope) -> bool:
    return any(ONE_NODE.search(line) or STANDALONE.search(line) for line in member.script.lines)


def _is_world(node: ast.expr) -> bool:
    """Whether a number of replicas is that of all ranks, by its name."""
    name = name_last(node.func if isinstance(node, ast.Call) else node).lower()
    return "world" in name and "local" not in ast.unparse(node).lower()


@check("DAT001", family="source", needs=NEEDS, id="lint.shard_by_local_rank", commands=LINT)
def tell_shard_by_local_rank(evidence: Evidence) -> Iterable[Finding]:
    """A sampler that counts all ranks is given the rank in the node."""
    for fact in facts_of(evidence, "shard-by-local-rank"):
        yield tell_fact(
            fact,
            f"The DistributedSampler at {name_line(fact.place)} counts all ranks and takes {fact.details['rank']}, the "
            "rank in the node, for the rank: on several nodes ranks of one local rank read the same shard, and the "
            "others' shards are never read.",
            Fix(
                "give it the global rank", code="sampler = DistributedSampler(dataset, rank=dist.get_rank())"
            ),
            why="the value was followed to the rank in the node, and nothing limits the script to one node",
            severity="warning",
        )
