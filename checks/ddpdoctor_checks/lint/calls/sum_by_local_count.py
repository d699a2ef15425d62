"""NUM005: the sum of all ranks is divided by the count of one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import DIST
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, name_last, names_in, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

REDUCES = {f"{DIST}all_reduce": (1, 2), f"{DIST}reduce": (2, 3)}
"""Calls that reduce, with the places of the operation and of the group."""
READS = frozenset({"float", "int", "max", "min", "print", "round", "str", "item", "cpu", "detach", "format"})
"""Functions and methods that only read a number."""
MAKERS = frozenset({"tensor", "as_tensor", "FloatTensor", "Tensor"})
WORLD = re.compile(r"world|rank|replica|gpu|n_?proc|num_proc|device_count", re.IGNORECASE)
"""Names of what may be the number of ranks."""


@lint_rule("sum-by-local-count", reads="files")
def find_local_counts(files: Files) -> Iterator[SourceFact]:
    """Yield divisions of a sum that was all-reduced by a count that was not (``sum-by-local-count``).

    Both are added up in one function, or by one object. sum, count: how they are written. Nothing where the count is
    given to anything but what reads it, where it is bound to more than numbers and itself, where the sum is that of a
    group or is no sum, and where a name beside it may be the number of ranks.
    """
    kinds = kinds_of(files)
    reducing = kinds.programs.scopes_calling(REDUCES)
    for module in files.modules:
        for scope in module.walk():
            if scope in reducing and isinstance(
                scope.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
            ):
                yield from _find_in(scope, kinds)


@dataclass(slots=True)
class _Uses:
    """What a function, or all methods of a class, does with variables and attributes, by how they are written."""

    added: dict[str, list[ast.expr]] = field(default_factory=dict)
    """What is added to each."""
    bound: dict[str, list[ast.expr]] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    """Those that are given to a call that may change or reduce them, or kept in a list."""
    scaled: set[str] = field(default_factory=set)
    """Those that are multiplied or divided by what may be the number of ranks."""


def _find_in(scope: Scope, kinds: Kinds) -> Iterator[SourceFact]:
    sums = {
        key: call for call in find_calls(scope) if (key := _find_sum(call, scope, kinds.files)) is not None
    }
    ratios = [each for each in own_nodes(scope.node) if isinstance(each, ast.BinOp)] if sums else []
    ratios = [each for each in ratios if isinstance(each.op, ast.Div)]
    if not ratios:
        return
    uses = _list_uses(scope)
    flow = kinds.flow(scope)
    told: set[tuple[str, str]] = set()
    for ratio in sorted(ratios, key=lambda each: (each.lineno, each.col_offset)):
        total, count = _find_only(ratio.left), _find_only(ratio.right)
        if total is None or count is None:
            continue
        origin = _find_origin(total, uses, frozenset(sums))
        if origin is None or not _is_summed(origin, uses):
            continue
        results = {key for key, values in uses.bound.items() for each in values if ratio in ast.walk(each)}
        if not uses.scaled.isdisjoint({origin, total, count, *results}):
            continue
        call = sums[origin]
        before, after = flow.spot(call), flow.spot(ratio)
        if before is None or after is None or before.number >= after.number or before.excludes(after):
            continue
        if (origin, count) not in told and _is_local_count(count, uses):
            told.add((origin, count))
            beside = (RelatedPlace("noticed", scope.place(call)),)
            details = {"sum": total, "count": count}
            yield SourceFact("sum-by-local-count", scope.place(ratio), beside, details, certain=False)


def _find_sum(call: ast.Call, scope: Scope, files: Files) -> str | None:
    """Return what a call sums up over all ranks; None of another call."""
    places = REDUCES.get(files.dotted(call.func, scope) or "")
    if places is None or find_keyword(call, "group", places[1]) is not None:
        return None
    op = find_keyword(call, "op", places[0])
    given = find_keyword(call, "tensor", 0)
    return _key(given) if given is not None and (op is None or name_last(op) == "SUM") else None


def _list_uses(scope: Scope) -> _Uses:
    """Return the uses in a function; of attributes of ``self`` those in the methods of its class."""
    uses = _Uses()
    owner = scope.outer if scope.outer is not None and isinstance(scope.outer.node, ast.ClassDef) else None
    for place in owner.functions.values() if owner is not None else (scope,):
        for node in own_nodes(place.node):
            _note(node, uses, whole=place is scope)
    return uses


def _note(node: ast.AST, uses: _Uses, *, whole: bool) -> None:
    """Note what a node does; of another method only what it does with attributes."""
    if isinstance(node, ast.AugAssign):
        key = _key(node.target)
        if key is not None and _counts_there(key, whole=whole):
            (uses.added if isinstance(node.op, ast.Add) else uses.bound).setdefault(key, []).append(
                node.value
            )
        if key is not None and isinstance(node.op, (ast.Mult, ast.Div)) and _speaks_of_world(node.value):
            uses.scaled.add(key)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target, value in (pair for each in targets for pair in _pair(each, node.value)):
            for each in ast.walk(target):
                key = _key(each)
                if key is not None and _counts_there(key, whole=whole):
                    uses.bound.setdefault(key, []).append(value)
            uses.given |= _list_kept(value)
    elif isinstance(node, ast.BinOp):
        if isinstance(node.op, (ast.Mult, ast.Div)) and any(map(_speaks_of_world, (node.left, node.right))):
            uses.scaled |= {key for key in map(_key, ast.walk(node)) if key is not None}
    elif isinstance(node, ast.Call) and name_last(node.func) not in READS | MAKERS:
        given = [*node.args, *(each.value for each in node.keywords)]
        given += [node.func.value] if isinstance(node.func, ast.Attribute) else []
        uses.given |= {key for key in map(_key, given) if key is not None}
        uses.given |= {key for each in given for key in _list_kept(each)}
    elif isinstance(node, ast.For):
        uses.given |= _list_kept(node.iter)


def _pair(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what is bound and what to: of a tuple that gets one each of its elements."""
    several = (ast.Tuple, ast.List)
    if isinstance(target, several) and isinstance(value, several) and len(target.elts) == len(value.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def _list_kept(value: ast.expr) -> set[str]:
    """Return what stands in a list or a tuple, whose elements may be reduced; not in that of a new tensor."""
    if isinstance(value, ast.Call) and name_last(value.func) in MAKERS:
        return set()
    lists = (each for each in ast.walk(value) if isinstance(each, (ast.List, ast.Tuple, ast.Dict)))
    return {key for each in lists for key in map(_key, ast.iter_child_nodes(each)) if key is not None}


def _counts_there(key: str, *, whole: bool) -> bool:
    return whole or key.startswith("self.")


def _speaks_of_world(node: ast.expr) -> bool:
    return any(map(WORLD.search, names_in(node)))


def _key(node: ast.AST) -> str | None:
    """Return how a variable or an attribute of one is written: ``total``, ``self.hits``."""
    if isinstance(node, ast.Name):
        return node.id
    inner = node.value if isinstance(node, ast.Attribute) else None
    return (
        f"{inner.id}.{node.attr}" if isinstance(node, ast.Attribute) and isinstance(inner, ast.Name) else None
    )


def _find_only(node: ast.expr) -> str | None:
    """Return the one variable or attribute of which an expression is made, beside numbers and what only reads it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        parts = [each for each in (node.left, node.right) if not isinstance(each, ast.Constant)]
        return _find_only(parts[0]) if len(parts) == 1 else None
    if isinstance(node, ast.Subscript):
        return _find_only(node.value)
    if isinstance(node, ast.List):
        return _find_only(node.elts[0]) if len(node.elts) == 1 else None
    if isinstance(node, ast.Call):
        inner = [each for each in node.args if not isinstance(each, ast.Constant)]
        if name_last(node.func) in READS and isinstance(node.func, ast.Attribute):
            return _find_only(node.func.value) if not inner and not node.keywords else None
        reads = name_last(node.func) in READS | MAKERS
        return _find_only(inner[0]) if reads and len(inner) == 1 else None
    return _key(node)


def _find_origin(key: str, uses: _Uses, found: frozenset[str]) -> str | None:
    """Return the variable of some that another was made of; itself, where it is one."""
    seen: set[str] = set()
    while key not in found and key not in seen:
        seen.add(key)
        made = {each for value in uses.bound.get(key, ()) if (each := _find_only(value)) not in (None, key)}
        key = made.pop() or "" if len(made) == 1 else ""
    return key if key in found else None


def _is_summed(key: str, uses: _Uses) -> bool:
    """Whether a variable was added up, or is a tensor made of what was."""
    made = [each for each in uses.bound.get(key, ()) if isinstance(each, ast.Call)]
    return key in uses.added or any(
        name_last(each.func) in MAKERS and not uses.added.keys().isdisjoint(map(_key, ast.walk(each)))
        for each in made
    )


def _is_local_count(key: str, uses: _Uses, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a variable counts what a rank has seen, and nothing but that, or was made of one that does."""
    if key in seen:
        return True
    added, bound = uses.added.get(key, ()), uses.bound.get(key, ())
    inner = {_find_only(each) for each in bound if not _is_empty(each)}
    return (
        key not in uses.given
        and bool(bound)
        and all(map(_measures, added))
        and all(each is not None and _is_local_count(each, uses, seen | {key}) for each in inner)
        and bool(added or any(uses.added.get(each or "") for each in inner))
    )


def _is_empty(node: ast.expr) -> bool:
    """Whether a value is a number, or a tensor of zeros."""
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Call) and name_last(node.func) == "zeros")


def _measures(node: ast.expr) -> bool:
    """Whether a value is 1, or the size of something."""
    if isinstance(node, ast.Constant):
        return node.value == 1
    if isinstance(node, ast.Subscript):
        return name_last(node.value) == "shape"
    return isinstance(node, ast.Call) and name_last(node.func) in ("size", "len", "numel")


@check("NUM005", family="source", needs=NEEDS, id="lint.sum_by_local_count", commands=LINT)
def tell_local_counts(evidence: Evidence) -> Iterable[Finding]:
    """A sum of all ranks is divided by the count of one rank."""
    for fact in facts_of(evidence, "sum-by-local-count"):
        total, count = fact.details["sum"], fact.details["count"]
        yield tell_fact(
            fact,
            f"{total} is the sum of all ranks after {name_line(fact.related[0].place)}, and is divided by {count}, "
            "which counts what this rank has seen: the result is too large by about the number of ranks.",
            Fix(
                "reduce the count as well",
                code=f"sums = torch.tensor([{total}, {count}], dtype=torch.float64, device=device)\n"
                "dist.all_reduce(sums)\nratio = (sums[0] / sums[1]).item()",
            ),
            why=f"{count} is only added to, and nothing that may reduce it is given it",
            severity="warning",
        )
