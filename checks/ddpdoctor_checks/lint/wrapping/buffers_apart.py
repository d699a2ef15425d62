"""NUM002: a wrapper that does not broadcast buffers leaves each rank its own statistics of BatchNorm."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import name_last
from ddpdoctor.source.training.norms import speaks_of_sync, wraps_norms
from ddpdoctor.source.training.train_loops import training_loops
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

SETTING = "broadcast_buffers"


@lint_rule("buffers-apart", reads="files")
def find_apart(files: Files) -> Iterator[SourceFact]:
    """Yield where ``broadcast_buffers=False`` stands of a wrapped model with BatchNorm (``buffers-apart``).

    In programs that evaluate, and speak of no SyncBatchNorm.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        for value in (each for forward in loop.wrapped for each in forward.values):
            if value.call in told or value.scope is None or not wraps_norms(value):
                continue
            told.add(value.call)
            found = _find_setting(value.call, value.scope, files)
            module = loop.scope.module
            if found is None or speaks_of_sync(module, kinds) or not _evaluates(module, kinds):
                continue
            setting, home = found
            place, wrap = home.place(setting), value.scope.place(value.call)
            beside = (
                (RelatedPlace("noticed", wrap),) if (place.file, place.line) != (wrap.file, wrap.line) else ()
            )
            yield SourceFact("buffers-apart", place, beside, {"made": "elsewhere"})


def _find_setting(wrap: ast.Call, scope: Scope, files: Files) -> tuple[ast.expr, Scope] | None:
    """Return the ``False`` that a wrapper is given, also in a dictionary: ``DDP(model, **SETTINGS)``."""
    for keyword in wrap.keywords:
        bound = files.find_bound(keyword.value, scope) if keyword.arg is None else None
        given: list[tuple[str | None, ast.expr]] = [(keyword.arg, keyword.value)]
        home = scope
        if bound is not None and len(bound[1]) == 1:
            home, (table,) = bound
            if isinstance(table, ast.Call) and name_last(table.func) == "dict":
                given = [(each.arg, each.value) for each in table.keywords]
            elif isinstance(table, ast.Dict):
                pairs = zip(table.keys, table.values, strict=True)
                given = [(str(key.value), each) for key, each in pairs if isinstance(key, ast.Constant)]
        for name, value in given:
            if name == SETTING and isinstance(value, ast.Constant) and value.value is False:
                return value, home
    return None


def _evaluates(module: Scope, kinds: Kinds) -> bool:
    return any(name_last(call.func) == "eval" for call, _, _ in kinds.programs.calls(module))


@check("NUM002", family="source", needs=("sources",), id="lint.buffers", commands=LINT)
def tell_apart(evidence: Evidence) -> Iterable[Finding]:
    """A wrapper leaves each rank its own statistics of BatchNorm."""
    for fact in facts_of(evidence, "buffers-apart"):
        yield tell_fact(
            fact,
            f"broadcast_buffers=False at {name_line(fact.place)} leaves each rank its own BatchNorm statistics: ranks "
            "evaluate with different ones, and a checkpoint holds those of the rank that saves.",
            Fix(
                "leave it on, or synchronize BatchNorm",
                code="model = nn.SyncBatchNorm.convert_sync_batchnorm(model)",
            ),
            why="the model has BatchNorm layers, and nothing in the program synchronizes them",
            severity="info",
            role="advice",
        )
