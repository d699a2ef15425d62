"""NUM007: gradients are clipped by the norm of the shard that a rank holds of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import FSDP1
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, own_nodes
from ddpdoctor.source.training.train_loops import about_ranks, speaks_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

CLIPS = frozenset({"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm",
                   "torch.nn.utils.clip_grad.clip_grad_norm_"})  # fmt: skip
SHARDING = frozenset({"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
"""Strategies of FullyShardedDataParallel under which a rank holds a part of each gradient."""
SCATTERS = frozenset({"torch.distributed.reduce_scatter", "torch.distributed.reduce_scatter_tensor",
                      "torch.distributed._reduce_scatter_base"})  # fmt: skip
LOCAL = frozenset({"to_local", "_local_tensor"})
"""What is the shard of a DTensor that a rank holds."""


@lint_rule("clipped-by-shard", reads="files")
def find_clipped(files: Files) -> Iterator[SourceFact]:
    """Yield calls of ``clip_grad_norm_`` that take the norm of a shard (``clipped-by-shard``).

    kind: ``fsdp`` of a FullyShardedDataParallel model, whose own method has to be called
    (https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_);
    ``local`` of the local part of DTensors; ``slice`` of a parameter whose gradient is what ``reduce_scatter`` left
    this rank, ``part`` of one whose gradient is a slice by the rank. What makes the shard is beside.
    """
    kinds = kinds_of(files)
    clipping = kinds.programs.scopes_calling(CLIPS)
    for module in files.modules:
        for scope in module.walk():
            for call in find_calls(scope) if scope in clipping else ():
                given = find_keyword(call, "parameters", 0)
                if given is None or files.dotted(call.func, scope) not in CLIPS:
                    continue
                found = _find_wrap(given, scope, kinds) or _find_slice(call, given, scope, kinds)
                found = found or _find_local(given, scope)
                if found is not None:
                    kind, node, home = found
                    beside = () if node is given else (RelatedPlace("noticed", home.place(node)),)
                    yield SourceFact("clipped-by-shard", scope.place(call), beside, {"kind": kind})


_Found = tuple[str, ast.AST, Scope]


def _find_wrap(given: ast.expr, scope: Scope, kinds: Kinds) -> _Found | None:
    """Return the wrap of the model whose parameters are clipped, where it shards them in any run."""
    if (
        not isinstance(given, ast.Call)
        or not isinstance(given.func, ast.Attribute)
        or given.func.attr != "parameters"
    ):
        return None
    values = kinds.find(given.func.value, scope)
    for each in values:
        if each.name not in FSDP1 or each.scope is None:
            return None
        strategy = find_keyword(each.call, "sharding_strategy", 2)
        named = strategy.attr if isinstance(strategy, ast.Attribute) else None
        if strategy is not None and named not in SHARDING:
            return None
    first = values[0] if values else None
    return ("fsdp", first.call, first.scope) if first is not None and first.scope is not None else None


def _find_local(given: ast.expr, scope: Scope) -> _Found | None:
    """Return where local parts are taken, in what is clipped or in the list that it names."""
    nodes: list[ast.AST] = [given]
    if isinstance(given, ast.Name):
        found = scope.lookup(given.id)
        nodes += found[1] if found is not None and found[0] is scope else []
    for each in (inner for node in nodes for inner in ast.walk(node)):
        if isinstance(each, ast.Attribute) and each.attr in LOCAL:
            return "local", each, scope
    return None


def _find_slice(call: ast.Call, given: ast.expr, scope: Scope, kinds: Kinds) -> _Found | None:
    """Return what leaves this rank a part of the gradients, which is then that of what is clipped."""
    clipped = {
        ast.unparse(each) for each in (given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])
    }
    scatters = [each for each in find_calls(scope) if kinds.files.dotted(each.func, scope) in SCATTERS]
    for node in own_nodes(scope.node):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or node.lineno > call.lineno:
            continue
        target = node.targets[0]
        if (
            not isinstance(target, ast.Attribute)
            or target.attr != "grad"
            or ast.unparse(target.value) not in clipped
        ):
            continue
        if _is_part(node.value, scope, kinds):
            return "part", node, scope
        held = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
        for each in scatters:
            output = find_keyword(each, "output", 0)
            if isinstance(output, ast.Name) and output.id in held and each.lineno < node.lineno:
                return "slice", each, scope
    return None


def _is_part(value: ast.expr, scope: Scope, kinds: Kinds) -> bool:
    """Whether a value is a slice by the rank, or what a function of the files returns is."""
    places: list[tuple[ast.AST, Scope]] = [(value, scope)]
    for call in ast.walk(value):
        function = kinds.called(call, scope) if isinstance(call, ast.Call) else None
        if function is not None:
            places += (
                (each.value, function)
                for each in own_nodes(function.node)
                if isinstance(each, ast.Return) and each.value is not None
            )
    return any(
        isinstance(each, ast.Subscript) and _is_by_rank(each.slice, home, kinds)
        for place, home in places
        for each in ast.walk(place)
    )


def _is_by_rank(node: ast.expr, scope: Scope, kinds: Kinds) -> bool:
    """Whether a slice is that of the rank: it names it, or a function that it calls does."""
    return isinstance(node, (ast.Slice, ast.Call)) and speaks_of(node, about_ranks, scope, kinds)


@check("NUM007", family="source", needs=NEEDS, id="lint.clipped_by_shard", commands=LINT)
def tell_clipped(evidence: Evidence) -> Iterable[Finding]:
    """Gradients are clipped by the norm of a shard."""
    what = {
        "fsdp": "the gradients of a FullyShardedDataParallel model, of which each rank holds a shard",
        "local": "the local part of DTensors",
        "slice": "the slice of the gradients that reduce_scatter leaves this rank",
        "part": "this rank's slice of the gradients",
    }
    own = Fix(
        "call the method of the model, which sums the norm over all shards",
        code="model.clip_grad_norm_(max_norm)",
    )
    by_hand = Fix(
        "sum the squared norm across the ranks that hold the shards, then scale",
        code="total = grad.norm() ** 2\ndist.all_reduce(total)\n"
        "grad.mul_((max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0))",
    )
    for fact in facts_of(evidence, "clipped-by-shard"):
        beside = f" ({name_line(fact.related[0].place)})" if fact.related else ""
        yield tell_fact(
            fact,
            f"clip_grad_norm_ at {name_line(fact.place)} takes the norm of {what[fact.details['kind']]}{beside}: each "
            "rank clips by another factor.",
            own if fact.details["kind"] == "fsdp" else by_hand,
            why="torch.nn.utils.clip_grad_norm_ knows the tensors of this rank only",
            severity="warning",
        )
