"""DAT001: a sampler gives each rank its part of a data set, and no loader of the data set has it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import SAMPLERS
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.makers import LOADERS
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.programs import FRAMEWORKS
from ddpdoctor.source.resolve.tables import may_give
from ddpdoctor.source.resolve.walking import find_keyword, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

ASKS = frozenset({"set_epoch", "epoch", "num_samples", "total_size", "__len__"})
"""What is asked of a sampler beside being given to a loader."""


@lint_rule("sampler-unused", reads="files")
def find_unused_samplers(files: Files) -> Iterator[SourceFact]:
    """Yield loaders beside whose data set stands a DistributedSampler that nothing is given (``sampler-unused``).

    sampler: its variable. The line that makes it is beside the loader.
    """
    kinds = kinds_of(files)
    for module in files.modules:
        if (
            not any("DistributedSampler" in name for each in module.walk() for name in each.imports.values())
            and "DistributedSampler" not in module.script.text
        ):
            continue
        if any(kinds.programs.calls(module, FRAMEWORKS)):
            continue  # Accelerate and others give a loader its sampler
        for scope in module.walk():
            yield from _find_in(scope, kinds)


def _find_in(scope: Scope, kinds: Kinds) -> Iterator[SourceFact]:
    made = dict(_find_samplers(scope, kinds.files))
    if not made:
        return
    loaders = [(call, _read_data(call)) for call, name in name_calls(scope, kinds.files) if name in LOADERS]
    for target, sampler in made.items():
        data = _read_data(sampler)
        own = [call for call, each in loaders if data is not None and each == data]
        if len(own) != 1 or not _is_plain(own[0], scope) or _is_used(target, sampler, scope):
            continue
        beside = RelatedPlace("noticed", scope.place(sampler))
        yield SourceFact("sampler-unused", scope.place(own[0]), (beside,), {"sampler": target}, certain=False)


def _find_samplers(scope: Scope, files: Files) -> Iterator[tuple[str, ast.Call]]:
    """Yield the variables of a scope that hold a DistributedSampler, with the call that makes it."""
    for node in own_nodes(scope.node):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        values = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
        for value in values:
            if (
                isinstance(value, ast.Call)
                and isinstance(node.targets[0], (ast.Name, ast.Attribute))
                and files.dotted(value.func, scope) in SAMPLERS
            ):
                yield ast.unparse(node.targets[0]), value


def _read_data(call: ast.Call) -> str | None:
    """Return the text of the data set that a sampler or a loader is given."""
    data = find_keyword(call, "dataset", 0)
    return ast.unparse(data) if isinstance(data, (ast.Name, ast.Attribute, ast.Subscript)) else None


def _is_plain(loader: ast.Call, scope: Scope) -> bool:
    """Whether a loader is surely given no sampler: also where it has ``**kwargs`` of a table made in the function."""
    if find_keyword(loader, "sampler", 3) is not None or find_keyword(loader, "batch_sampler", 4) is not None:
        return False
    return not may_give(loader, scope, "sampler")


def _is_used(target: str, sampler: ast.Call, scope: Scope) -> bool:
    """Whether a sampler is given to anything: other uses ask it, compare it, or return it beside the loader."""
    home: ast.AST = scope.node
    if target.startswith("self."):
        owner = scope.find_class()
        home = owner.node if owner is not None else home
    elif "." in target:
        return True  # of an object that others have too
    quiet: set[int] = set()
    for node in ast.walk(home):
        if isinstance(node, ast.Attribute) and node.attr in ASKS:
            quiet.add(id(node.value))
        elif isinstance(node, ast.Compare):
            quiet.update(id(each) for each in (node.left, *node.comparators))
        elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
            quiet.add(id(node.test))
        elif isinstance(node, ast.UnaryOp):
            quiet.add(id(node.operand))
        elif isinstance(node, (ast.Return, ast.Yield)) and isinstance(node.value, ast.Tuple):
            quiet.update(id(each) for each in node.value.elts)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("len", "print", "isinstance")
        ):
            quiet.update(id(each) for each in node.args)
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and id(node) not in quiet
        and ast.unparse(node) == target
        for node in ast.walk(home)
    )


@check("DAT001", family="source", needs=NEEDS, id="lint.sampler_given", commands=LINT)
def tell_unused_sampler(evidence: Evidence) -> Iterable[Finding]:
    """A DistributedSampler is made for a data set whose loader does not get it."""
    known = {fact.place for fact in facts_of(evidence, "loader-unsharded")}
    for fact in facts_of(evidence, "sampler-unused"):
        if fact.place in known:
            continue
        sampler = fact.details["sampler"]
        yield tell_fact(
            fact,
            f"The DataLoader at {name_line(fact.place)} is not given {sampler}, the DistributedSampler made for its "
            f"dataset at {name_line(fact.related[0].place)}: each rank gets the whole dataset.",
            Fix("give it to the loader, and leave shuffle out", code=f"sampler={sampler}"),
            why="no loader is given that sampler, and nothing else uses it",
            severity="warning",
        )
