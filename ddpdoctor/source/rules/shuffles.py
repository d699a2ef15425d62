"""Orders that each rank draws for itself, and of which ranks take parts by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.flow import Flow, Spot, name_of
from ddpdoctor.source.kinds import Kinds, kinds_of
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.ranks import RankReader
from ddpdoctor.source.rules.splits import distributed_modules, find_seeding, show_arguments
from ddpdoctor.source.walking import find_calls, is_spelled_out, names_in

IN_PLACE = ("random.shuffle", "numpy.random.shuffle")
"""Functions that put a list into a random order."""
FRESH = ("torch.randperm", "numpy.random.permutation", "random.sample")
"""Functions that return one."""
CONVERSIONS = ("tolist", "numpy", "astype", "to", "cpu", "cuda", "long", "int")
"""Methods that keep the order, and the functions that do."""
CONTAINERS = (
    "list",
    "tuple",
    "numpy.array",
    "numpy.asarray",
    "torch.tensor",
    "torch.as_tensor",
    "torch.from_numpy",
)
DIVIDERS = ("array_split", "chunk", "tensor_split", "split")
"""Functions and methods that cut something into parts, one for each rank."""
SHARED = ("broadcast", "scatter", "sync", "gather", "share")
"""Parts of names of functions by which ranks agree on what they are given."""
VALIDATION = ("val", "test", "dev", "eval", "hold", "held")
"""Parts of names of what is not trained on."""


@dataclass(frozen=True, slots=True)
class _Draw:
    """A random order that a variable has from some place on."""

    name: str
    call: ast.Call
    function: str
    spot: Spot


@dataclass(frozen=True, slots=True)
class _Part:
    """A part that is taken of an order."""

    node: ast.Subscript
    spot: Spot
    statement: ast.stmt


def find_shuffles(files: Files) -> Iterator[SourceFact]:
    """Yield orders that each rank draws for itself, and shares out or splits (``shares-by-rank``, ``split-by-rank``).

    names: ``seeded`` (by rank) or ``unseeded``, the function, and its arguments as they stand. The noticed place is
    where the part of a rank is taken.
    """
    kinds, ranks = kinds_of(files), RankReader(files)
    for module in distributed_modules(kinds):
        for scope in module.walk():
            if not any(files.dotted(each.func, scope) in (*IN_PLACE, *FRESH) for each in find_calls(scope)):
                continue
            way = find_seeding(module, kinds)
            if way is not None:
                yield from _judge(scope, way, kinds, ranks)


def _judge(scope: Scope, way: str, kinds: Kinds, ranks: RankReader) -> Iterator[SourceFact]:
    flow = kinds.flow(scope)
    for draw in _find_draws(scope, flow, kinds.files):
        if _is_shared(draw, scope, flow, kinds.files):
            continue
        parts = list(_find_parts(draw, flow, kinds.files, scope))
        told = way, draw.function, show_arguments(draw.call)
        shares = [
            (each, known) for each in parts if (known := _find_rank(each.node, scope, ranks)) is not None
        ]
        if shares:
            part, traced = shares[0]
            related = (RelatedPlace("noticed", scope.place(part.node)),)
            yield SourceFact("shares-by-rank", scope.place(draw.call), related, told, traced)
        elif (pair := _find_split(parts)) is not None:
            related = (RelatedPlace("noticed", scope.place(pair.node)),)
            yield SourceFact("split-by-rank", scope.place(draw.call), related, told)


def _find_draws(scope: Scope, flow: Flow, files: Files) -> Iterator[_Draw]:
    """Yield the orders that a scope draws from the random numbers that all draw from."""
    for statement, spot in flow.statements:
        if not spot.is_on:
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            name = name_of(call.args[0]) if len(call.args) == 1 else None
            if (
                name is not None
                and not call.keywords
                and (done := files.dotted(call.func, scope)) in IN_PLACE
            ):
                yield _Draw(name, call, done or "", spot)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            name = name_of(targets[0]) if len(targets) == 1 else None
            drawn = _find_drawn(statement.value, scope, files)
            if name is not None and drawn is not None:
                yield _Draw(name, drawn, files.dotted(drawn.func, scope) or "", spot)


def _find_drawn(node: ast.expr, scope: Scope, files: Files) -> ast.Call | None:
    """Return the call that draws an order, where an expression is that order and nothing else."""
    while isinstance(node, ast.Call):
        name = files.dotted(node.func, scope)
        if name in FRESH:
            seeded = any(each.arg == "generator" for each in node.keywords)
            return node if node.args and not seeded and is_spelled_out(node) else None
        if isinstance(node.func, ast.Attribute) and node.func.attr in CONVERSIONS:
            node = node.func.value
        elif name in CONTAINERS and len(node.args) == 1:
            node = node.args[0]
        else:
            return None
    return None


def _is_shared(draw: _Draw, scope: Scope, flow: Flow, files: Files) -> bool:
    """Whether ranks may agree on the order after it was drawn."""
    for call in find_calls(scope):
        spot = flow.spot(call)
        last = (files.dotted(call.func, scope) or ast.unparse(call.func)).rpartition(".")[2].lower()
        given = (*call.args, *(each.value for each in call.keywords))
        if (
            (spot is None or spot.number >= draw.spot.number)
            and any(word in last for word in SHARED)
            and any(draw.name.rpartition(".")[2] in set(names_in(each)) for each in given)
        ):
            return True
    return False


def _find_parts(draw: _Draw, flow: Flow, files: Files, scope: Scope) -> Iterator[_Part]:
    """Yield what is taken of an order by a slice, or as one of several parts, where it is still that order."""
    for statement, spot in flow.statements:
        if not draw.spot.surely_before(spot) or not spot.is_on or not _still_holds(draw, spot, flow):
            continue
        own = [each for each in ast.iter_child_nodes(statement) if isinstance(each, (ast.expr, ast.withitem))]
        for node in (inner for each in own for inner in ast.walk(each)):
            if isinstance(node, ast.Subscript) and _name_divided(node, files, scope) == draw.name:
                yield _Part(node, spot, statement)


def _still_holds(draw: _Draw, spot: Spot, flow: Flow) -> bool:
    bindings = flow.holding(draw.name, spot)
    if bindings is None:
        return draw.function in IN_PLACE  # bound around the scope, or in another method
    last = draw.spot.number if draw.function in IN_PLACE else draw.spot.number + 1
    return all(each.spot.number < last for each in bindings)


def _name_divided(node: ast.Subscript, files: Files, scope: Scope) -> str | None:
    """Return the variable of which ``x[a:b:c]``, ``x.chunk(n)[i]`` or ``numpy.array_split(x, n)[i]`` is a part."""
    if isinstance(node.slice, ast.Slice):
        return name_of(node.value)
    if not isinstance(node.value, ast.Call):
        return None
    call = node.value
    last = (files.dotted(call.func, scope) or ast.unparse(call.func)).rpartition(".")[2]
    if last not in DIVIDERS or not call.args:
        return None
    held = isinstance(call.func, ast.Attribute) and name_of(call.func.value)
    return held if held and len(call.args) == 1 else name_of(call.args[0])


def _find_rank(node: ast.Subscript, scope: Scope, ranks: RankReader) -> bool | None:
    """Whether the rank in what says which part it is was traced to its source; None where none is in it."""
    ends = [node.slice.lower, node.slice.upper] if isinstance(node.slice, ast.Slice) else [node.slice]
    inner = [each for end in ends if end is not None for each in ast.walk(end)]
    known = [
        ranks.rank(each, scope) for each in inner if isinstance(each, (ast.Name, ast.Attribute, ast.Call))
    ]
    return next((each for each in known if each is not None), None)


def _find_split(parts: list[_Part]) -> _Part | None:
    """Return the second of two parts that are all of an order together, and one of which is not trained on."""
    for first in parts:
        for second in parts:
            one, other = first.node.slice, second.node.slice
            if not isinstance(one, ast.Slice) or not isinstance(other, ast.Slice) or one.step or other.step:
                continue
            meet = (
                one.lower is None
                and other.upper is None
                and one.upper is not None
                and other.lower is not None
            )
            if not meet or ast.dump(one.upper or other) != ast.dump(other.lower or one):
                continue
            words = [name.lower() for each in (first, second) for name in names_in(each.statement)]
            if any(part in word for word in words for part in VALIDATION):
                return second
    return None
