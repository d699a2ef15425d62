"""NUM001: a model is copied before DistributedDataParallel makes the ranks equal, and the copy is used in training."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import COPIES, Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.training.train_loops import is_seeded_apart, training_loops
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

LOADS = frozenset({"load_state_dict", "from_pretrained", "broadcast", "load_model", "load_checkpoint"})
"""Names of calls after which models may be equal whatever they started with."""


@lint_rule("copied-before-wrap", reads="files")
def find_copies(files: Files) -> Iterator[SourceFact]:
    """Yield copies of a model made before it is wrapped, and called where it is trained (``copied-before-wrap``).

    DistributedDataParallel sends the weights of the first rank to all others, but not to copies. Only where the program
    seeds random numbers by the rank, and loads or sends no weights. The wrap and the call are beside.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        wrapped = [value for forward in loop.wrapped for value in forward.values]
        if (
            not wrapped
            or not is_seeded_apart(loop.scope.module, kinds)
            or kinds.programs.any_file(loop.scope.module, _loads, kinds)
        ):
            continue
        for forward in loop.forwards:
            for copy in forward.values:
                if copy.made in told or copy.scope is None or not _is_copy(copy, kinds):
                    continue
                wrap = next((each for each in wrapped if _is_copied_before(copy, each, kinds)), None)
                if wrap is not None and wrap.scope is not None:
                    told.add(copy.call)
                    places = (wrap.scope.place(wrap.call), forward.scope.place(forward.call))
                    beside = tuple(RelatedPlace("noticed", each) for each in places)
                    yield SourceFact("copied-before-wrap", copy.scope.place(copy.call), beside, certain=False)


def _is_copy(value: Value, kinds: Kinds) -> bool:
    called = value.made.func if isinstance(value.made, ast.Call) else None
    return (
        called is not None and value.scope is not None and kinds.files.dotted(called, value.scope) in COPIES
    )


def _is_copied_before(copy: Value, wrap: Value, kinds: Kinds) -> bool:
    """Whether a copy is one of the model that is wrapped, and surely made before."""
    if copy.scope is None or wrap.scope is None or not copy.call.args:
        return False
    models = kinds.find(copy.call.args[0], copy.scope)
    if not models or not all(any(each.may_be(inner) for inner in wrap.inner) for each in models):
        return False
    flow = kinds.flow(wrap.scope)
    own = flow.spot(wrap.call)
    spots = [flow.spot(each) for each in _list_calls(copy, wrap.scope, kinds)]
    return (
        own is not None
        and bool(spots)
        and all(each is not None and each.surely_before(own) for each in spots)
    )


def _list_calls(copy: Value, scope: Scope, kinds: Kinds) -> list[ast.Call]:
    """Return the calls in a function by which a copy is made: that itself, or those of the function that makes it."""
    if copy.scope is scope:
        return [copy.call]
    return (
        [call for call, home in kinds.callers(copy.scope) if home is scope] if copy.scope is not None else []
    )


def _loads(member: Scope, kinds: Kinds) -> bool:
    return any(
        (call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]) in LOADS
        for call, _, name in kinds.programs.list_calls(member)
    )


@check("NUM001", family="source", needs=NEEDS, id="lint.copied_before_wrap", commands=LINT)
def tell_copies(evidence: Evidence) -> Iterable[Finding]:
    """A copy of a model that the wrap does not make equal on all ranks is used in training."""
    for fact in facts_of(evidence, "copied-before-wrap"):
        wrap, call = (each.place for each in fact.related)
        yield tell_fact(
            fact,
            f"The model is copied at {name_line(fact.place)}, before DistributedDataParallel at {name_line(wrap)} "
            "makes it equal on all ranks, and random numbers are seeded by the rank: the copy that "
            f"{name_line(call)} calls differs across ranks.",
            Fix(
                "copy the model after it is wrapped",
                code="model = DistributedDataParallel(net)\nteacher = copy.deepcopy(model.module)",
            ),
            why="DistributedDataParallel broadcasts the weights of the model that it wraps, and not of copies",
        )
