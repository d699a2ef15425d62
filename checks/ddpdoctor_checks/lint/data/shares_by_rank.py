"""DAT005: ranks take parts of an order that each of them draws for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.flow import Flow, Spot, name_of
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.walking import find_calls, is_spelled_out, show_arguments
from ddpdoctor.source.sameness.seeding import find_seeding
from ddpdoctor.source.training.train_loops import distributed_modules
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import seed_draw, tell_seeds

IN_PLACE = ("random.shuffle", "numpy.random.shuffle")
"""Functions that put a list into a random order."""
FRESH = ("torch.randperm", "numpy.random.permutation", "random.sample")
"""Functions that return a fresh permutation."""
CONVERSIONS = ("tolist", "numpy", "astype", "to", "cpu", "cuda", "long", "int")
"""Methods that keep the order."""
CONTAINERS = (
    "list",
    "tuple",
    "numpy.array",
    "numpy.asarray",
    "torch.tensor",
    "torch.as_tensor",
    "torch.from_numpy",
)
"""Functions that return what they are given in another container."""
DIVIDERS = ("array_split", "chunk", "tensor_split", "split")
"""Functions and methods that cut something into parts, one for each rank."""
SHARED = (
    "broadcast",
    "bcast",
    "scatter",
    "sync",
    "gather",
    "share",
    "send",
    "recv",
    "reduce",
    "barrier",
)
"""Parts of names of functions by which ranks may come to have one order."""


@dataclass(frozen=True, slots=True)
class _Draw:
    """A random order that a variable has from some place on."""

    name: str
    call: ast.Call
    function: str
    spot: Spot


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of an order that one rank takes."""

    node: ast.Subscript
    spot: Spot
    traced: bool
    """Whether the rank was followed to its source."""


@lint_rule("shares-by-rank", reads="files")
def find_shuffles(files: Files) -> Iterator[SourceFact]:
    """Yield orders that each rank draws for itself, and of which each takes its part (``shares-by-rank``).

    way: ``seeded`` (by rank) or ``unseeded``. function: that draws. given: its arguments as they stand. seed: what may
    be that of all ranks: the variable of the loop, or 0. The noticed place is where the part is taken.
    """
    kinds, ranks = kinds_of(files), RankReader(files)
    drawing = kinds.programs.scopes_calling((*IN_PLACE, *FRESH))
    for module in distributed_modules(kinds):
        for scope in module.walk():
            if scope in drawing:
                yield from _judge(scope, module, kinds, ranks)


def _judge(scope: Scope, module: Scope, kinds: Kinds, ranks: RankReader) -> Iterator[SourceFact]:
    flow = kinds.flow(scope)
    for draw in _find_draws(scope, flow, kinds.files):
        part = next(_find_parts(draw, scope, flow, kinds.files, ranks), None)
        if part is None or _may_be_shared(draw, part, scope, flow, kinds.files):
            continue
        way = find_seeding(module, kinds, draw.function.split(".")[0])
        if way is not None:
            related = (RelatedPlace("noticed", scope.place(part.node)),)
            details = {
                "way": way,
                "function": draw.function,
                "given": show_arguments(draw.call),
                "seed": _name_round(draw.spot, flow),
            }
            yield SourceFact("shares-by-rank", scope.place(draw.call), related, details, part.traced)


def _name_round(spot: Spot, flow: Flow) -> str:
    """Return the variable of a loop around a place that counts epochs by its name; else 0."""
    for statement, own in flow.statements:
        if (
            isinstance(statement, ast.For)
            and own.number in spot.loops
            and isinstance(statement.target, ast.Name)
        ):
            name = statement.target.id
            if "epoch" in name.lower():
                return name
    return "0"


def _find_draws(scope: Scope, flow: Flow, files: Files) -> Iterator[_Draw]:
    """Yield the orders that a scope draws from the random numbers that all draw from."""
    for statement, spot in flow.statements:
        if not spot.is_on:
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            name = name_of(call.args[0]) if len(call.args) == 1 and not call.keywords else None
            function = _name_imported(call, scope, files)
            if name is not None and function in IN_PLACE:
                yield _Draw(name, call, function, spot)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            name = name_of(targets[0]) if len(targets) == 1 else None
            drawn = _find_drawn(statement.value, scope, files)
            if name is not None and drawn is not None:
                yield _Draw(name, *drawn, spot)


def _name_imported(call: ast.Call, scope: Scope, files: Files) -> str:
    """Return the dotted name of what is called, where it comes from an import and no variable hides that."""
    first = call.func
    while isinstance(first, ast.Attribute):
        first = first.value
    if not isinstance(first, ast.Name):
        return ""
    home = next(
        (each for each in scope.visible() if first.id in each.imports or first.id in each.bound), None
    )
    return (files.dotted(call.func, scope) or "") if home is not None and first.id not in home.bound else ""


def _find_drawn(node: ast.expr, scope: Scope, files: Files) -> tuple[ast.Call, str] | None:
    """Return the call that draws an order, where an expression is that order and nothing else."""
    while isinstance(node, ast.Call):
        name = _name_imported(node, scope, files)
        if name in FRESH:
            seeded = any(each.arg == "generator" for each in node.keywords)
            fits = node.args and not seeded and is_spelled_out(node)
            return (node, name) if fits and (name != "random.sample" or _takes_all(node)) else None
        if isinstance(node.func, ast.Attribute) and node.func.attr in CONVERSIONS:
            node = node.func.value
        elif (files.dotted(node.func, scope) or "") in CONTAINERS and len(node.args) == 1:
            node = node.args[0]
        else:
            return None
    return None


def _takes_all(call: ast.Call) -> bool:
    """Whether ``random.sample(x, len(x))`` takes all there is; fewer may be meant to be other ones on each rank."""
    return len(call.args) == 2 and ast.unparse(call.args[1]) == f"len({ast.unparse(call.args[0])})"


def _find_parts(draw: _Draw, scope: Scope, flow: Flow, files: Files, ranks: RankReader) -> Iterator[_Part]:
    """Yield the parts of an order that are taken by rank, where the variable has still that order."""
    for statement, spot in flow.statements:
        if not draw.spot.surely_before(spot) or not spot.is_on or not _still_holds(draw, spot, flow):
            continue
        for node in _walk_own(statement):
            if isinstance(node, ast.Subscript):
                traced = _find_share(node, draw.name, scope, files, ranks)
                if traced is not None:
                    yield _Part(node, spot, traced)


def _walk_own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield what stands in a statement itself, without the statements in it."""
    own = (each for each in ast.iter_child_nodes(statement) if isinstance(each, (ast.expr, ast.withitem)))
    return (inner for each in own for inner in ast.walk(each))


def _still_holds(draw: _Draw, spot: Spot, flow: Flow) -> bool:
    """Whether no other value is bound to the variable between the two places."""
    between = (
        each for each in flow.bindings.get(draw.name, ()) if draw.spot.number < each.spot.number < spot.number
    )
    return next(between, None) is None


def _find_share(node: ast.Subscript, name: str, scope: Scope, files: Files, ranks: RankReader) -> bool | None:
    """Whether the rank by which ``x[rank::n]``, ``x[rank * n : …]`` or ``array_split(x, n)[rank]`` is taken was traced.

    None where nothing is taken by rank, or of something else.
    """
    if not isinstance(node.slice, ast.Slice):
        return ranks.rank(node.slice, scope) if _name_divided(node.value, scope, files) == name else None
    lower, upper, step = node.slice.lower, node.slice.upper, node.slice.step
    if name_of(node.value) != name or lower is None:
        return None
    if step is not None and upper is None:
        return _find_rank(_expand(lower, scope), scope, ranks)
    if step is None and upper is not None:
        return _find_rank([each for each in _expand(lower, scope) if _is_product(each)], scope, ranks)
    return None


def _name_divided(node: ast.expr, scope: Scope, files: Files) -> str | None:
    """Return the variable that ``x.chunk(n)`` or ``numpy.array_split(x, n)`` cuts into parts."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    last = (files.dotted(node.func, scope) or ast.unparse(node.func)).rpartition(".")[2]
    if last not in DIVIDERS:
        return None
    held = isinstance(node.func, ast.Attribute) and name_of(node.func.value)
    return held if held and len(node.args) == 1 else name_of(node.args[0])


def _expand(node: ast.expr, scope: Scope) -> list[ast.AST]:
    """Return what is in an expression, and in what its names are bound to once."""
    found = list(ast.walk(node))
    for each in [each for each in found if isinstance(each, ast.Name)]:
        bound = scope.lookup(each.id)
        if bound is not None and len(bound[1]) == 1:
            found += ast.walk(bound[1][0])
    return found


def _is_product(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def _find_rank(nodes: Iterable[ast.AST], scope: Scope, ranks: RankReader) -> bool | None:
    """Whether a rank in one of these was traced to its source; None where none is in them."""
    inner = [
        side
        for each in nodes
        for side in ((each.left, each.right) if isinstance(each, ast.BinOp) else (each,))
    ]
    known = [
        ranks.rank(each, scope) for each in inner if isinstance(each, (ast.Name, ast.Attribute, ast.Call))
    ]
    return next((each for each in known if each is not None), None)


def _may_be_shared(draw: _Draw, part: _Part, scope: Scope, flow: Flow, files: Files) -> bool:
    """Whether ranks may agree on the order between the draw and the part.

    So they may where anything is done in between with the variable but to ask its length or to take a slice of it, and
    where anything may pass between ranks.
    """
    between = range(draw.spot.number + 1, part.spot.number + 1)
    for call in find_calls(scope):
        spot = flow.spot(call)
        last = (files.dotted(call.func, scope) or ast.unparse(call.func)).rpartition(".")[2].lower()
        inside = (spot is None or spot.number in between) and call is not part.node.value
        if inside and any(word in last for word in SHARED):
            return True
    statements = [statement for statement, spot in flow.statements if spot.number in between]
    return any(_is_touched(draw.name, statement, part) for statement in statements)


def _is_touched(name: str, statement: ast.stmt, part: _Part) -> bool:
    """Whether a statement does more with a variable than to ask its length, to take slices of it, or to bind it."""
    harmless: set[int] = set()
    if isinstance(statement, ast.Assign):
        harmless.update(map(id, statement.targets))  # after the part was taken
    for node in _walk_own(statement):
        if node is part.node:
            harmless.update(map(id, ast.walk(part.node.value)))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            harmless.update([id(node.value)] if isinstance(node.ctx, ast.Load) else ())
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            harmless.update(map(id, node.args))
    named = (each for each in _walk_own(statement) if isinstance(each, (ast.Name, ast.Attribute)))
    return any(name_of(each) == name and id(each) not in harmless for each in named)


@check("DAT005", family="source", needs=("sources",), id="lint.shares", commands=LINT)
def tell_shares(evidence: Evidence) -> Iterable[Finding]:
    """Ranks take parts of an order that each of them draws for itself."""
    for fact in facts_of(evidence, "shares-by-rank"):
        way, function, given = (fact.details[name] for name in ("way", "function", "given"))
        yield tell_fact(
            fact,
            f"{function.rpartition('.')[2]} at {name_line(fact.place)} gives each rank an order of its own, "
            f"because {tell_seeds(way)}, and each rank takes its shard from that: shards overlap, and some "
            "samples are in none.",
            Fix(
                "draw the order with one seed on all ranks",
                code=seed_draw(function, given, fact.details["seed"]),
            ),
            why=(
                f"each rank's shard is taken at {name_line(fact.related[0].place)}, and the order is not "
                "used before"
            ),
            severity=None if way == "seeded" else "warning",
        )
