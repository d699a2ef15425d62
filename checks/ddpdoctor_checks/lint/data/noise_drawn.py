"""DAT006: noise for each sample of a batch is drawn from a generator that all ranks seed with one value."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.walking import find_argument, find_keyword, names_in
from ddpdoctor.source.training.graphs import slice_of
from ddpdoctor.source.training.train_loops import about_shards, speaks_of, training_loops
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

DRAWS = frozenset(
    {"torch.rand", "torch.randn", "torch.randint", "torch.normal", "torch.multinomial", "torch.bernoulli"}
)
"""Functions that draw a tensor from a generator that they are given."""
SIZES = frozenset({"len", "shape", "size"})
"""Names in the shape of what is drawn for each sample of a batch; a draw for all of them may have to be one value."""
RESEEDS = frozenset({"manual_seed", "seed", "set_state"})
"""Methods that give a generator another state."""
DEEPEST = 4
"""Values that are followed into one another to where a generator is made."""


@lint_rule("noise-drawn-alike", reads="files")
def find_noise(files: Files) -> Iterator[SourceFact]:
    """Yield generators from which a wrapped model gets the same noise on all ranks (``noise-drawn-alike``).

    The noise has a value for each sample, beside samples of a loader, and the seed does not speak of ranks. Nothing
    where something seeds a generator again. drawn: where it is drawn.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not isinstance(loop.node, ast.For) or kinds.programs.any_file(
            loop.scope.module, _seeds_again, kinds
        ):
            continue
        samples = {each.id for each in ast.walk(loop.node.target) if isinstance(each, ast.Name)}
        for forward in loop.wrapped:
            behind = [slice_of(each, forward.scope, kinds) for each in forward.call.args]
            if not any(samples & each.words for each in behind):
                continue
            for call, home in (pair for each in behind for pair in each.calls):
                generator = find_keyword(call, "generator")
                if files.dotted(call.func, home) not in DRAWS or generator is None or not _has_sizes(call):
                    continue
                seed = _find_seed(generator, home, kinds)
                if seed is None or seed[0] in told or speaks_of(seed[0], about_shards, seed[1], kinds):
                    continue
                told.add(seed[0])
                details = {"drawn": name_line(home.place(call)), "made": "elsewhere"}
                beside = (RelatedPlace("noticed", forward.scope.place(forward.call)),)
                yield SourceFact("noise-drawn-alike", seed[1].place(seed[0]), beside, details, certain=False)


def _seeds_again(member: Scope, kinds: Kinds) -> bool:
    """Whether a file seeds a generator that a variable holds, or sets its state."""
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr in RESEEDS
        and isinstance(call.func.value, (ast.Name, ast.Attribute))
        and not name.startswith(("torch.", "numpy.", "random."))
        for call, _, name in kinds.programs.list_calls(member)
    )


def _has_sizes(draw: ast.Call) -> bool:
    return any(not SIZES.isdisjoint(names_in(each)) for each in draw.args)


def _find_seed(node: ast.expr, scope: Scope, kinds: Kinds, depth: int = 0) -> tuple[ast.Call, Scope] | None:
    """Return ``torch.Generator().manual_seed(…)`` from which alone a generator comes; None where that is not known."""
    if isinstance(node, ast.Call):
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        seeds = isinstance(node.func, ast.Attribute) and node.func.attr == "manual_seed"
        made = isinstance(owner, ast.Call) and kinds.files.dotted(owner.func, scope) == "torch.Generator"
        return (node, scope) if seeds and made and node.args else None
    given = _list_values(node, scope, kinds) if depth < DEEPEST else []
    found = {_find_seed(value, home, kinds, depth + 1) for value, home in given if value is not None}
    return found.pop() if len(found) == 1 and all(value is not None for value, _ in given) else None


def _list_values(node: ast.expr, scope: Scope, kinds: Kinds) -> list[tuple[ast.expr | None, Scope]]:
    """Return what a variable, a parameter or an attribute of ``self`` may be; None among it where that is not known."""
    if isinstance(node, ast.Name) and (found := scope.lookup(node.id)) is not None:
        home, values = found
        if node.id in home.parameters and values == [UNKNOWN]:
            return [(find_argument(call, home, node.id), where) for call, where in kinds.callers(home)]
        return [(None if each is UNKNOWN else each, home) for each in values]
    owner = scope.find_class()
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self" and owner is not None:
        return [(each, owner.makers.get(each, owner)) for each in owner.attributes.get(node.attr, ())]
    return []


@check("DAT006", family="source", needs=NEEDS, id="lint.noise_drawn", commands=LINT)
def tell_noise(evidence: Evidence) -> Iterable[Finding]:
    """All ranks draw the same noise for different samples."""
    for fact in facts_of(evidence, "noise-drawn-alike"):
        yield tell_fact(
            fact,
            f"The generator made at {name_line(fact.place)} has the same seed on all ranks: the noise drawn from it at "
            f"{fact.details['drawn']} is the same on each of them, for different samples.",
            Fix("seed by the rank", code="torch.Generator().manual_seed(seed + dist.get_rank())"),
            why="its seed does not depend on the rank, and a value is drawn for each sample of a batch",
            severity="warning",
        )
