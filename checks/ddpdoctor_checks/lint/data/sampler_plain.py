"""DAT001: where a script says that there are several ranks, its loader gets a sampler that knows none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.makers import LOADERS
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.programs import FRAMEWORKS
from ddpdoctor.source.resolve.walking import find_keyword, name_last, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question
from ddpdoctor_checks.lint.data.loader_unsharded import is_the_same

PLAIN = frozenset({"torch.utils.data.RandomSampler", "torch.utils.data.sampler.RandomSampler"})
DISTRIBUTED = ("distributed", "ddp")
"""Parts of the names of options and functions that tell whether there are several ranks."""
COUNTS = re.compile(r"^world$|world_?size|^n?(um)?_?(gpu|rank|proc|process|replica)(es|s)?$", re.IGNORECASE)
"""Names of how many ranks there are."""
MANY = frozenset({(ast.Gt, 1), (ast.GtE, 2), (ast.NotEq, 1)})
"""Comparisons that hold where a number of ranks is that of several."""
SHARES = re.compile(r"rank|shard|world|split|subset|local|part|val|test|eval", re.IGNORECASE)
"""Names of data of which each rank may have a share, or that is not trained on."""


@lint_rule("sampler-plain", reads="files")
def find_plain_samplers(files: Files) -> Iterator[SourceFact]:
    """Yield loaders that get a RandomSampler on the side of a test that is for several ranks (``sampler-plain``).

    test: the test. whole: whether the data set is the same on each rank, by all that is seen of its making.
    """
    kinds = kinds_of(files)
    for module in files.modules:
        found = [each for scope in module.walk() for each in _find_in(scope, kinds)]
        if not found or any(kinds.programs.calls(module, FRAMEWORKS)):
            continue  # Accelerate and others give a loader its sampler
        yield from found


def _find_side(test: ast.expr, scope: Scope, kinds: Kinds) -> bool | None:
    """Return the side of a test that is for several ranks; None of one that asks for something else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        side = _find_side(test.operand, scope, kinds)
        return None if side is None else not side
    if not isinstance(test, ast.Compare):
        name = _name_asked(test).lower()
        return True if any(word in name for word in DISTRIBUTED) else None
    name = _name_asked(test.left)
    if name.lower().endswith("rank"):
        return kinds.programs.side(test, scope)
    value = test.comparators[0]
    compared = (type(test.ops[0]), value.value if isinstance(value, ast.Constant) else None)
    return True if compared in MANY and COUNTS.search(name) else None


def _name_asked(node: ast.expr) -> str:
    """Return the name of a variable, an option or a function without arguments that a test asks."""
    if isinstance(node, ast.Call):
        if (
            name_last(node.func) == "getattr"
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
        ):
            return str(node.args[1].value)
        return name_last(node.func) if not node.args else ""
    return name_last(node)


def _find_in(scope: Scope, kinds: Kinds) -> Iterator[SourceFact]:
    given = {
        ast.unparse(sampler): call
        for call, name in name_calls(scope, kinds.files)
        if name in LOADERS and (sampler := find_keyword(call, "sampler", 3)) is not None
    }
    for test, value, target in _list_chosen(scope, kinds) if given else ():
        loader, data = given.get(target), _find_data(value, scope, kinds)
        if loader is not None and data is not None:
            sets = kinds.all_of(data, scope, "dataset")
            whole = bool(sets) and all(is_the_same(one, kinds) for one in sets)
            details = {"test": test, "whole": "yes" if whole else ""}
            yield SourceFact("sampler-plain", scope.place(loader), details=details, certain=False)


def _list_chosen(scope: Scope, kinds: Kinds) -> Iterator[tuple[str, ast.expr, str]]:
    """Yield what is bound where there are several ranks: the test, the value, and what it is bound to."""
    for node in own_nodes(scope.node):
        if isinstance(node, ast.If) and (side := _find_side(node.test, scope, kinds)) is not None:
            body = node.body if side else node.orelse
            assigned = [inner for each in body for inner in ast.walk(each) if isinstance(inner, ast.Assign)]
            yield from (
                (_show(node.test, side), each.value, ast.unparse(each.targets[0])) for each in assigned
            )
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
            side = _find_side(node.value.test, scope, kinds)
            if side is not None:
                value = node.value.body if side else node.value.orelse
                yield _show(node.value.test, side), value, ast.unparse(node.targets[0])


def _show(test: ast.expr, side: bool) -> str:
    return ast.unparse(test) if side else f"not ({ast.unparse(test)})"


def _find_data(value: ast.expr, scope: Scope, kinds: Kinds) -> ast.expr | None:
    """Return the data of a RandomSampler; None of another, and of data of which each rank may have a share."""
    if not isinstance(value, ast.Call) or kinds.files.dotted(value.func, scope) not in PLAIN:
        return None
    data = find_keyword(value, "data_source", 0)
    return data if data is not None and not SHARES.search(ast.unparse(data)) else None


@check("DAT001", family="source", needs=NEEDS, id="lint.sampler_plain", commands=LINT)
def ask_plain_sampler(evidence: Evidence) -> Iterable[Finding]:
    """A loader gets a sampler that knows no ranks where there are several."""
    known = {fact.place for fact in facts_of(evidence, "loader-unsharded")}
    asked = {fact.place for fact in facts_of(evidence, "loader-doubted")}
    for fact in facts_of(evidence, "sampler-plain"):
        if fact.place in known or (fact.place in asked and not fact.details["whole"]):
            continue
        gets = f"The DataLoader at {name_line(fact.place)} gets a RandomSampler where {fact.details['test']} holds"
        fix = Fix("give each rank its own shard of the data", code="sampler = DistributedSampler(dataset)")
        why = "a RandomSampler knows no ranks, and the test says that there are several"
        if fact.details["whole"]:
            yield tell_fact(
                fact, f"{gets}: each rank trains on the whole dataset.", fix, why=why, severity="warning"
            )
        else:
            yield tell_question(fact, f"{gets}: is the dataset sharded by rank elsewhere?", fix, why=why)
