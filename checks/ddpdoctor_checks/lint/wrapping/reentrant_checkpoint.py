"""DDP003: reentrant checkpointing under a wrapper that searches for unused parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, names_in, own_nodes
from ddpdoctor.source.training.wraps import is_certain, wraps_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

CHECKPOINT = frozenset({"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"})


@lint_rule("reentrant-checkpoint", reads="files")
def find_reentrant(files: Files) -> Iterator[SourceFact]:
    """Yield reentrant checkpointing under a wrapper that searches for unused parameters (``reentrant-checkpoint``).

    way: ``said`` where the call asks for it, else ``default``.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for wrap in wraps_of(kinds):
        search, static = (
            find_keyword(wrap.value.call, name) for name in ("find_unused_parameters", "static_graph")
        )
        on = isinstance(search, ast.Constant) and search.value is True
        if not on or static is not None:
            continue
        owners = {each.owner for each in wrap.value.inner if each.owner is not None}
        for owner in owners:
            for scope in owner.walk():
                for call in find_calls(scope):
                    way = _reentrant_way(call, scope, files)
                    if way is not None and call not in told and not _is_static(wrap.scope.module, kinds):
                        told.add(call)
                        noticed = RelatedPlace("noticed", wrap.scope.place(wrap.value.call))
                        place = scope.place(call)
                        chosen = any(
                            isinstance(each, (ast.IfExp, ast.BoolOp)) and call in ast.walk(each)
                            for each in own_nodes(scope.node)
                        )
                        certain = is_certain(call, scope, kinds) and not chosen
                        yield SourceFact(
                            "reentrant-checkpoint", place, (noticed,), {"way": way}, certain=certain
                        )


def _is_static(module: Scope, kinds: Kinds) -> bool:
    """Whether a program says by a method that the graph is the same in each step."""
    return any("_set_static_graph" in names_in(each.node) for each in kinds.programs.members(module))


def _reentrant_way(call: ast.Call, scope: Scope, files: Files) -> str | None:
    if files.dotted(call.func, scope) not in CHECKPOINT or any(each.arg is None for each in call.keywords):
        return None
    way = find_keyword(call, "use_reentrant")
    if way is None:
        return "default"
    return "said" if isinstance(way, ast.Constant) and way.value is True else None


@check("DDP003", family="source", needs=("sources",), id="lint.ready_once", commands=LINT)
def tell_reentrant(evidence: Evidence) -> Iterable[Finding]:
    """Reentrant checkpointing in a model whose wrapper searches for unused parameters."""
    for fact in facts_of(evidence, "reentrant-checkpoint"):
        said = fact.details["way"] == "said"
        how = "is reentrant" if said else "is reentrant by default"
        yield tell_fact(
            fact,
            f"checkpoint at {name_line(fact.place)} {how}, and the DistributedDataParallel at "
            f"{name_line(fact.related[0].place)} searches for unused parameters: those inside are treated "
            "as unused, and are ready a second time in the backward pass.",
            Fix("use non-reentrant checkpointing", code="checkpoint(block, x, use_reentrant=False)"),
            why="the search walks the graph of the forward pass, which reentrant checkpointing omits",
            severity=None if said else "warning",
        )
