"""DDP012: nn.DataParallel in a process that is one rank of several."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.makers import find_class_kind
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import Trace
from ddpdoctor.source.resolve.walking import find_calls, find_keyword
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor.source.training.wraps import is_certain, wraps_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

DATA_PARALLEL = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"})


@lint_rule("data-parallel", reads="module")
def find_data_parallel(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield where nn.DataParallel is made in a function that also makes its process a rank (``data-parallel``).

    A script that has one way with ranks and one without, as functions or as sides of a test, is right.
    """
    for scope in module.walk():
        calls = list(find_calls(scope))
        joins = [call for call in calls if files.dotted(call.func, scope) in JOINS]
        if not any(_in_body(call, scope) and not _is_alone(call) for call in joins):
            continue
        for call in calls:
            if files.dotted(call.func, scope) in DATA_PARALLEL and _in_body(call, scope):
                yield SourceFact("data-parallel", scope.place(call))


@lint_rule("data-parallel-on-ranks", reads="program")
def find_in_program(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where a program that becomes a rank makes nn.DataParallel in any function (``data-parallel-on-ranks``)."""
    if trace.alone or not any(step.name in JOINS for step in trace.steps):
        return
    ways = ways_of(files, trace)
    for step in trace.steps:
        if step.name in DATA_PARALLEL and ways.is_on_ranks(step):
            yield SourceFact("data-parallel-on-ranks", step.scope.place(step.node))


@lint_rule("data-parallel-wrapped", reads="files")
def find_wrapped(files: Files) -> Iterator[SourceFact]:
    """Yield nn.DataParallel that is given to a DistributedDataParallel, on whatever way (``data-parallel-wrapped``)."""
    kinds = kinds_of(files)
    for wrap in wraps_of(kinds):
        if wrap.value.inner and all(each.kind == "data parallel" for each in wrap.value.inner):
            noticed = RelatedPlace("noticed", wrap.scope.place(wrap.value.call))
            for inner in wrap.value.inner:
                if inner.scope is not None:
                    yield SourceFact("data-parallel-wrapped", inner.scope.place(inner.call), (noticed,))


@lint_rule("data-parallel-in-model", reads="files")
def find_in_models(files: Files) -> Iterator[SourceFact]:
    """Yield nn.DataParallel that a model makes of its parts, in a program that wraps (``data-parallel-in-model``).

    The wrap is beside. Not below a test: a model may have one way for a single process.
    """
    kinds = kinds_of(files)
    for wrap in wraps_of(kinds):
        noticed = RelatedPlace("noticed", wrap.scope.place(wrap.value.call))
        for call, scope, _ in kinds.programs.calls(wrap.scope.module, DATA_PARALLEL):
            owner = scope.find_class()
            if owner is None or owner.functions.get("__init__") is not scope:
                continue
            if find_class_kind(owner, files) == "model" and is_certain(call, scope, kinds):
                yield SourceFact("data-parallel-in-model", scope.place(call), (noticed,), certain=False)


def _is_alone(join: ast.Call) -> bool:
    """Whether a group of one rank is made, as tests of a single process do."""
    size = find_keyword(join, "world_size", 3)
    return isinstance(size, ast.Constant) and size.value == 1


def _in_body(call: ast.Call, scope: Scope) -> bool:
    """Whether a call stands in the body of a scope itself, below no test or loop."""
    return any(
        call in ast.walk(statement)
        for statement in scope.node.body
        if isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return))
    )


@check("DDP012", family="source", needs=("sources",), id="lint.data_parallel", commands=LINT)
def tell_data_parallel(evidence: Evidence) -> Iterable[Finding]:
    """nn.DataParallel is made where the process has just become a rank."""
    here = list(facts_of(evidence, "data-parallel"))
    places = {fact.place for fact in here}
    there = []
    for fact in facts_of(
        evidence, "data-parallel-on-ranks", "data-parallel-wrapped", "data-parallel-in-model"
    ):
        if fact.place not in places:
            places.add(fact.place)
            there.append(fact)
    for fact in (*here, *there):
        yield tell_fact(
            fact,
            (
                f"nn.DataParallel at {name_line(fact.place)} is created in a process that is one rank of "
                "several."
            ),
            Fix(
                "wrap the model in DistributedDataParallel instead",
                code="model = DistributedDataParallel(model, device_ids=[local_rank])",
            ),
            why="no `if` guards it that does not guard init_process_group too",
            role="advice",
        )
