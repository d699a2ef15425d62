"""NUM005: a metric object gets the samples of one rank, and its result stands for all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import SAMPLERS
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, is_spelled_out, names_in, own_nodes
from ddpdoctor.source.training.train_loops import loaders_of, samplers_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

MAKERS = frozenset({"evaluate.load", "evaluate.combine", "datasets.load_metric"})
"""Functions whose metrics know one process unless they are given ``num_process`` (huggingface.co/docs/evaluate)."""
TORCHEVAL = "torcheval.metrics."
"""Classes whose ``compute`` is local; ``sync_and_compute`` is not (pytorch.org/torcheval)."""
ADDS = frozenset({"add", "add_batch", "update"})
JOINS = re.compile(r"gather|reduce|sync|pad_across|broadcast", re.IGNORECASE)
"""Names of what joins the values of all ranks."""


@lint_rule("metric-apart", reads="files")
def find_apart(files: Files) -> Iterator[SourceFact]:
    """Yield the result of a metric object that saw what one rank's loader gave it (``metric-apart``).

    The loader was given to ``Accelerator.prepare`` or has a DistributedSampler; nothing in the function joins values
    of all ranks by its name. name: the variable. The line that gives it the samples is beside it.
    """
    kinds = kinds_of(files)
    for module in files.modules:
        if not any(name.startswith(("evaluate", "datasets", "torcheval")) for name in _list_imported(module)):
            continue
        for scope in module.walk():
            if not isinstance(scope.node, ast.ClassDef):
                yield from _find_in(scope, kinds)


def _list_imported(module: Scope) -> set[str]:
    return {name for scope in module.walk() for name in scope.imports.values()}


def _find_in(scope: Scope, kinds: Kinds) -> Iterator[SourceFact]:
    added: dict[str, ast.Call] = {}
    for loop in own_nodes(scope.node):
        if isinstance(loop, ast.For) and _is_shared(loop.iter, scope, kinds):
            for node in own_nodes(loop):
                name = _name_metric(node, ADDS, scope, kinds)
                if name is not None and isinstance(node, ast.Call):
                    added.setdefault(name, node)
    if not added or any(map(JOINS.search, names_in(scope.node))):
        return
    for call in find_calls(scope):
        name = _name_metric(call, frozenset({"compute"}), scope, kinds)
        if name in added:
            beside = (RelatedPlace("noticed", scope.place(added.pop(name))),)
            yield SourceFact("metric-apart", scope.place(call), beside, {"name": name}, certain=False)


def _is_shared(node: ast.expr, scope: Scope, kinds: Kinds) -> bool:
    """Whether a loop goes through one rank's part of the data."""
    if kinds.all_of(node, scope, "prepared"):
        return True
    samplers = [one for each in loaders_of(node, scope, kinds) for one in samplers_of(each, kinds)]
    return bool(samplers) and all(each.name in SAMPLERS for each in samplers)


def _name_metric(node: ast.AST, methods: frozenset[str], scope: Scope, kinds: Kinds) -> str | None:
    """Return the variable of a metric object of which a call asks one of some methods."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr not in methods
    ):
        return None
    held = node.func.value
    found = scope.lookup(held.id) if isinstance(held, ast.Name) else None
    if found is None or not isinstance(held, ast.Name):
        return None
    makers = [
        each for each in found[1] if isinstance(each, ast.Call) and _makes_metric(each, found[0], kinds)
    ]
    return held.id if makers and len(makers) == len(found[1]) else None


def _makes_metric(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    name = kinds.files.dotted(call.func, scope) or ""
    if name.startswith(TORCHEVAL):
        return True
    return name in MAKERS and is_spelled_out(call) and find_keyword(call, "num_process") is None


@check("NUM005", family="source", needs=("sources",), id="lint.metric_objects", commands=LINT)
def tell_apart(evidence: Evidence) -> Iterable[Finding]:
    """A metric object counts one rank's samples."""
    for fact in facts_of(evidence, "metric-apart"):
        name, given = fact.details["name"], name_line(fact.related[0].place)
        yield tell_fact(
            fact,
            f"{name} at {name_line(fact.place)} covers one rank's shard only: {given} gives it the samples of a "
            "loader that is split across ranks, and nothing gathers them.",
            Fix(
                "gather the predictions and labels first",
                code="predictions, labels = accelerator.gather_for_metrics((predictions, labels))",
            ),
            why=f"{name} knows one process, and no name in the function is that of a gather, reduce or sync",
            severity="warning",
        )
