"""DAT001: a stream that is shared out to the workers of a loader and not to ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact, SourcePlace
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, Value, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.tables import may_give
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, names_in
from ddpdoctor.source.training.train_loops import (
    about_shards,
    loaders_of,
    speaks_of,
    training_loops,
)
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

DEEPEST = 3
"""Functions that are followed into one another from the iterator of a stream."""
DRAWS = ("random.", "numpy.random.", "torch.rand")
"""Functions that draw random numbers: what they choose may differ across ranks."""
SEEDED = frozenset({"random.Random", "numpy.random.default_rng", "numpy.random.RandomState"})
"""Generators that draw the same on each rank where they are given a seed."""


@lint_rule("stream-unsharded", reads="files")
def find_unsharded_streams(files: Files) -> Iterator[SourceFact]:
    """Yield streams that share samples out to the workers of a loader alone (``stream-unsharded``).

    The worker information of torch counts the workers of one process: each rank has all of them, so that all ranks
    read the same samples (https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset). The loader
    is beside the line that asks for the worker. stream: the class of the stream. Silent where anything that makes the
    stream, or that it calls, speaks of ranks or draws random numbers, or leads to what was not read.
    """
    kinds = kinds_of(files)
    told: set[Scope] = set()
    for loop in training_loops(kinds):
        if not loop.wrapped or isinstance(loop.node, ast.While):
            continue
        for loader in loaders_of(loop.node.iter, loop.scope, kinds):
            for stream in _list_streams(loader, kinds):
                owner = stream.owner
                if owner is None or owner in told or stream.scope is None:
                    continue
                told.add(owner)
                if speaks_of(stream.call, about_shards, stream.scope, kinds):
                    continue
                asked = _find_worker_question(owner, kinds)
                if asked is not None and loader.scope is not None:
                    beside = RelatedPlace("noticed", loader.scope.place(loader.call))
                    yield SourceFact("stream-unsharded", asked, (beside,), {"stream": owner.name or ""})


def _list_streams(loader: Value, kinds: Kinds) -> tuple[Value, ...]:
    if (
        loader.kind != "loader"
        or loader.scope is None
        or may_give(loader.call, loader.scope, "worker_init_fn")
    ):
        return ()
    if find_keyword(loader.call, "worker_init_fn") is not None:
        return ()
    data = find_keyword(loader.call, "dataset", 0)
    return kinds.all_of(data, loader.scope, "iterable") if data is not None else ()


def _find_worker_question(owner: Scope, kinds: Kinds) -> SourcePlace | None:
    """Return where a stream asks which worker it is; None where it may also share out by rank."""
    order = kinds.files.objects.method(owner, "__iter__")
    if order is None:
        return None
    reached, place = [order], None
    homes = list(kinds.files.objects.bases(owner))
    if any(about_shards(name) for home in homes for name in names_in(home.node)):
        return None
    for _ in range(DEEPEST):
        further: list[Scope] = []
        for scope in reached:
            for call in find_calls(scope):
                name = kinds.files.dotted(call.func, scope) or ""
                if name.rpartition(".")[2] == "get_worker_info":
                    place = place or scope.place(call)
                elif name.startswith(DRAWS) and not (name in SEEDED and call.args):
                    return None
                called = kinds.called(call, scope)
                if called is not None:
                    further.append(called)
        if any(about_shards(name) for each in further for name in names_in(each.node)):
            return None
        reached = further
    return place


@check("DAT001", family="source", needs=NEEDS, id="lint.stream", commands=LINT)
def tell_unsharded_streams(evidence: Evidence) -> Iterable[Finding]:
    """A stream is sharded across the workers of a loader, and each rank has all of these workers."""
    for fact in facts_of(evidence, "stream-unsharded"):
        yield tell_fact(
            fact,
            f"{fact.details['stream']} shards its samples across DataLoader workers at {name_line(fact.place)}, but "
            f"not across ranks: each rank of the loader at {name_line(fact.related[0].place)} reads the whole stream.",
            Fix(
                "shard by rank and worker",
                code="shard = dist.get_rank() * info.num_workers + info.id\n"
                "shards = dist.get_world_size() * info.num_workers",
            ),
            why="get_worker_info counts the workers of one process, and nothing the stream calls asks for the rank",
            severity="warning",
        )
