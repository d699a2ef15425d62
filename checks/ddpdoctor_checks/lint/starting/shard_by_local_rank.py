"""DAT001: a sampler counts all ranks, and is given the rank in the node."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS, SAMPLERS
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.traces import Trace
from ddpdoctor.source.resolve.walking import find_argument, find_keyword, name_last
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.starting.device_by_rank import ONE_NODE, joins_by_local_rank

VARIABLES = frozenset({"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"})
"""Variables of launchers that hold the rank in the node."""
DEEPEST = 4
"""Variables and functions over which a value is followed."""


@lint_rule("shard-by-local-rank", reads="program")
def find_shards_by_local_rank(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield samplers over all ranks that are given the rank in the node (``shard-by-local-rank``).

    rank: how it is written. Nothing where a script knows only one node.
    """
    kinds = kinds_of(files)
    steps = [step for step in trace.steps if step.call is not None and step.name in SAMPLERS]
    if (
        not steps
        or not trace.has_peers
        or any(ONE_NODE.search("\n".join(m.script.lines)) for m in files.modules)
    ):
        return
    joins = (step.call for step in trace.steps if step.name in JOINS and step.call is not None)
    if any(map(joins_by_local_rank, joins)):
        return
    ways = ways_of(files, trace)
    for step in steps:
        assert step.call is not None
        rank, replicas = find_keyword(step.call, "rank", 2), find_keyword(step.call, "num_replicas", 1)
        whole = replicas is None or _is_world(replicas)
        if whole and rank is not None and _is_local_rank(rank, step.scope, kinds):
            yield ways.tell("shard-by-local-rank", step, rank=ast.unparse(rank))


def _is_world(node: ast.expr) -> bool:
    """Whether a number of replicas is that of all ranks, by its name."""
    name = name_last(node.func if isinstance(node, ast.Call) else node).lower()
    return "world" in name and "local" not in ast.unparse(node).lower()


def _is_local_rank(node: ast.expr, scope: Scope, kinds: Kinds, depth: int = 0) -> bool:
    """Whether a value is the rank in the node: by its variable, or by its name where nothing else shows what it is."""
    files = kinds.files
    if depth > DEEPEST:
        return False
    if isinstance(node, ast.Call):
        name = files.dotted(node.func, scope)
        if name in ("os.environ.get", "os.getenv"):
            return bool(node.args) and fold(node.args[0], scope, files) in VARIABLES
        inner = node.args[0] if name == "int" and len(node.args) == 1 else None
        return name == "torch.distributed.get_node_local_rank" or (
            inner is not None and _is_local_rank(inner, scope, kinds, depth + 1)
        )
    if isinstance(node, ast.Subscript):
        return files.dotted(node.value, scope) == "os.environ" and fold(node.slice, scope, files) in VARIABLES
    if isinstance(node, ast.Attribute):
        return node.attr == "local_rank"
    if not isinstance(node, ast.Name):
        return False
    found = scope.lookup(node.id)
    if found is None:
        return False
    home, values = found
    if node.id in home.parameters and len(values) == 1:
        given = [(find_argument(call, home, node.id), where) for call, where in kinds.callers(home)]
        return bool(given) and all(
            each is not None and _is_local_rank(each, where, kinds, depth + 1) for each, where in given
        )
    return len(values) == 1 and _is_local_rank(values[0], home, kinds, depth + 1)


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
