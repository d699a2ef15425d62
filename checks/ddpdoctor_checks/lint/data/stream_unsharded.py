"""DAT001: a stream that each rank reads as a whole: it is not shared out, or to the workers of a loader alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact, SourcePlace
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.known import HARMLESS, KNOWN_ROOTS
from ddpdoctor.source.resolve.makers import BASES
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.tables import may_give
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, name_last, names_in, own_nodes
from ddpdoctor.source.training.train_loops import (
    RANDOM,
    about_ranks,
    about_shards,
    batches_of,
    note_loader,
    skips_by_rank,
    speaks_of,
    training_loops,
)
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question

DEEPEST = 3
"""Functions that are followed into one another from the iterator of a stream."""
DRAWS = ("random.", "numpy.random.", "torch.rand")
"""Functions that draw random numbers: what they choose may differ across ranks."""
SEEDED = frozenset({"random.Random", "numpy.random.default_rng", "numpy.random.RandomState"})
"""Generators that draw the same on each rank where they are given a seed."""


OF_GENERATORS = frozenset({"shuffle", "sample", "choice", "choices", "randint", "randrange", "random", "uniform",
                           "gauss", "integers", "permutation", "manual_seed"})  # fmt: skip
"""Methods of generators; those without a seed are left out before."""
PLAIN_BASES = frozenset({"object", "abc.ABC", "typing.Generic"})
OF_PROCESS = frozenset({"os", "time", "socket", "uuid", "secrets", "queue", "multiprocessing", "threading",
                        "subprocess", "urllib", "http", "asyncio"})  # fmt: skip
"""Modules whose functions may give each process something else."""
OF_FILES = ("os.path.", "os.listdir.", "os.walk.", "os.scandir.", "os.fspath.")
"""Those of them that give all processes the same."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a stream that draws nothing at random gives its samples."""

    asked: SourcePlace | None
    """Where it shares samples out by worker."""
    known: bool
    """Whether everything that it calls and inherits was read or is known."""
    names: frozenset[str]
    """All that stand in it, and in the functions that it calls."""


@lint_rule("stream-unsharded", "stream-doubted", reads="files")
def find_unsharded_streams(files: Files) -> Iterator[SourceFact]:
    """Yield streams that each rank reads as a whole (``stream-unsharded``).

    The worker information of torch counts the workers of one process: each rank has all of them, so that all ranks
    read the same samples (https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset). The place
    is the line that reads the number of workers, with loader and loop beside it (shared: by worker); without such a
    line it is the loader, with the loop. stream: its class. Silent where anything that makes the stream, or that it
    calls, speaks of ranks or draws random numbers. A stream that asks for no worker is a question (``stream-doubted``)
    where it leads to what was not read.
    """
    kinds = kinds_of(files)
    told: set[Scope] = set()
    for loop in training_loops(kinds):
        if not loop.wrapped or skips_by_rank(loop, kinds):
            continue
        for loader in batches_of(loop, kinds):
            for stream in _list_streams(loader, kinds):
                owner = stream.owner
                if owner is None or owner in told or stream.scope is None or loader.scope is None:
                    continue
                told.add(owner)
                reading = _read_stream(owner, kinds)
                named = {"stream": owner.name or ""}
                if reading is None:
                    continue
                known = reading.known and _is_made_alike(stream, kinds)
                # where all is known, or workers share the samples out, a shard that no rank chooses is a file
                fits = about_ranks if known else _about_nodes if reading.asked is not None else about_shards
                if any(fits(name) for name in reading.names) or any(
                    speaks_of(each.call, fits, home, kinds)
                    for each, home in ((loader, loader.scope), (stream, stream.scope))
                ):
                    continue
                if reading.asked is not None:
                    beside = (loader.scope.place(loader.call), loop.scope.place(loop.node))
                    noticed = tuple(RelatedPlace("noticed", each) for each in dict.fromkeys(beside))
                    details = {**named, "shared": "by worker"}
                    yield SourceFact("stream-unsharded", reading.asked, noticed, details)
                    continue
                yield note_loader(loader, "stream-unsharded" if known else "stream-doubted", loop, **named)


def _about_nodes(name: str) -> bool:
    """Whether a name shows that something is done by rank, or by node."""
    return about_ranks(name) or re.search(r"node|dist|replica|process", name, re.IGNORECASE) is not None


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


def _read_stream(owner: Scope, kinds: Kinds) -> _Reading | None:
    """Return how a stream gives its samples; None where it draws them."""
    order = kinds.files.objects.method(owner, "__iter__")
    if order is None:
        return None
    homes = list(kinds.files.objects.bases(owner))
    names = {name for home in homes for name in names_in(home.node)}
    asked, known, seen = None, all(_are_bases_known(home, kinds) for home in homes), {order}
    reached, seeded = [order], False
    for _ in range(DEEPEST):
        further: list[Scope] = []
        for scope in reached:
            known = known and _is_known(scope.node, scope, kinds)
            for call in find_calls(scope):
                name = kinds.files.dotted(call.func, scope) or ""
                if name.rpartition(".")[2] == "get_worker_info":
                    asked = asked or scope.place(_find_use(call, scope))
                elif name in SEEDED and call.args:
                    seeded = True
                elif name.startswith(DRAWS):
                    return None
                called = kinds.called(call, scope)
                if called is not None and called not in seen:
                    seen.add(called)
                    further.append(called)
        reached = further
    if asked is None and not seeded and not RANDOM.isdisjoint(names):
        return None
    inner = {name for each in seen for name in names_in(each.node)}
    return _Reading(asked, known and not reached, frozenset(names | inner))


def _find_use(call: ast.Call, scope: Scope) -> ast.AST:
    """Return where the number of workers is read of what `get_worker_info` returned, or else the call."""
    held = {name for name, values in scope.bound.items() if call in values}
    for node in own_nodes(scope.node):
        read = node.value if isinstance(node, ast.Attribute) and node.attr == "num_workers" else None
        if isinstance(read, ast.Name) and read.id in held:
            return node
    return call


def _are_bases_known(owner: Scope, kinds: Kinds) -> bool:
    """Whether all that a class inherits from was read, or is torch's own."""
    home = owner.outer or owner
    bases = owner.node.bases if isinstance(owner.node, ast.ClassDef) else []
    for base in bases:
        named = base.value if isinstance(base, ast.Subscript) else base  # IterableDataset[int]
        name = kinds.files.dotted(named, home) or ""
        if kinds.files.find_class(named, home) is None and name not in BASES and name not in PLAIN_BASES:
            return False
    return True


def _is_known(node: ast.AST, scope: Scope, kinds: Kinds) -> bool:
    """Whether all that a piece of code calls, followed or known, gives all ranks the same."""
    for each in ast.walk(node):
        if not isinstance(each, (ast.Call, ast.Attribute)):
            continue
        name = kinds.files.dotted(each.func if isinstance(each, ast.Call) else each, scope) or ""
        root = name.partition(".")[0]
        if root in OF_PROCESS and not f"{name}.".startswith(OF_FILES):
            return False
        if not isinstance(each, ast.Call) or kinds.called(each, scope) is not None:
            continue
        if root not in KNOWN_ROOTS and name_last(each.func) not in HARMLESS | OF_GENERATORS:
            return False
    return True


def _is_made_alike(stream: Value, kinds: Kinds) -> bool:
    """Whether what a stream is made with comes from nothing that may differ by rank, as far as its call shows."""
    scope = stream.scope
    given = (*stream.call.args, *(each.value for each in stream.call.keywords))
    return scope is not None and all(_is_known(each, scope, kinds) for each in given)


@check("DAT001", family="source", needs=NEEDS, id="lint.stream", commands=LINT)
def tell_unsharded_streams(evidence: Evidence) -> Iterable[Finding]:
    """A stream is read as a whole by each rank."""
    fix = Fix(
        "shard by rank and worker",
        code="info = torch.utils.data.get_worker_info()\n"
        "worker, workers = (info.id, info.num_workers) if info else (0, 1)\n"
        "shard = dist.get_rank() * workers + worker\n"
        "shards = dist.get_world_size() * workers",
    )
    for fact in facts_of(evidence, "stream-unsharded"):
        name, beside = fact.details["stream"], name_line(fact.related[0].place)
        if "shared" in fact.details:
            message = (
                f"{name} shards its samples across DataLoader workers at {name_line(fact.place)}, but not across "
                f"ranks: each rank of the loader at {beside} reads the whole stream."
            )
            why = "get_worker_info counts the workers of one process, and nothing the stream calls asks for the rank"
        else:
            message = (
                f"The DataLoader at {name_line(fact.place)} reads {name}, a stream that is not sharded: each rank "
                "trains on all its samples, in the same order."
            )
            why = "nothing the stream calls asks for the rank or draws random numbers, and a stream has no sampler"
        yield tell_fact(fact, message, fix, why=why, severity="warning")
    for fact in facts_of(evidence, "stream-doubted"):
        yield tell_question(
            fact,
            f"The DataLoader at {name_line(fact.place)} reads {fact.details['stream']}, a stream that names no rank: "
            "is it sharded elsewhere?",
            fix,
            why="the stream leads to code that was not read",
        )
