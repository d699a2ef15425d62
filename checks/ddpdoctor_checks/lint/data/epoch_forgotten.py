"""DAT002: a program of epochs gives loaders a DistributedSampler, and no file of it calls ``set_epoch``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import SAMPLERS
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.makers import LOADERS
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.traces import Frame
from ddpdoctor.source.resolve.walking import find_keyword, is_spelled_out, own_nodes
from ddpdoctor.source.sameness.alike import find_value
from ddpdoctor.source.training.train_loops import BATCHES, is_backward
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.data.epoch_unset import names_epoch, orders_by_epoch, sets_otherwise

SETS = re.compile(r"set_epoch|setattr\(\w*sampler|Accelerator\(")
"""What sets the epoch of a sampler, or is known to do it."""
PASSES_ON = re.compile(r"^\s*(?:#|(?:async )?def set_epoch\b|super\(.*\)\.set_epoch\()")
"""What speaks of it and calls it for nobody: the method of a class, with what it inherits, and comments."""
FRAMEWORKS = re.compile(
    r"^(ignite|mmengine|mmcv\.runner|catalyst|composer)\b|^(transformers|lightning|pytorch_lightning|lightning_fabric)\b.*"
    r"\b\w*(Trainer|Fabric|LightningCLI)$"
)
"""Modules that set it in loops of their own, and classes that have such loops."""
NOT_TRAINED = re.compile(r"val|test|eval|infer|query|gallery|feature|memory|bank|predict", re.IGNORECASE)
"""Names of what is not trained on, or not for epochs."""


@lint_rule("epoch-forgotten", reads="files")
def find_forgotten_epochs(files: Files) -> Iterator[SourceFact]:
    """Yield samplers that shuffle and are given to a loader, in programs that never speak of ``set_epoch``.

    These train in a loop over epochs (``epoch-forgotten``).
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for module in files.modules:
        made = [pair for scope in module.walk() for pair in _find_given(scope, kinds)]
        made = [(sampler, scope) for sampler, scope in made if sampler not in told]
        counted = any(find_keyword(sampler, "num_replicas", 1) is not None for sampler, _ in made)
        if made and (counted or kinds.programs.is_distributed(module)) and _trains_without(module, kinds):
            told.update(sampler for sampler, _ in made)
            yield from (
                SourceFact("epoch-forgotten", scope.place(sampler), certain=False) for sampler, scope in made
            )


def _find_given(scope: Scope, kinds: Kinds) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield samplers of a scope that shuffle by the epoch, and that a loader for training is given.

    That is a loader of the scope, or one elsewhere in the program where the scope hands its samplers on.
    """
    files = kinds.files
    if NOT_TRAINED.search(scope.name or ""):
        return
    calls = list(name_calls(scope, files))
    samplers = [call for call, name in calls if name in SAMPLERS or _find_own(call, scope, files)]
    if not samplers or _is_wrapped_elsewhere(scope, kinds):
        return
    given = {ast.unparse(each) for call, name in calls for each in _list_samplers(call, name, scope, files)}
    if not given and any(
        _list_samplers(call, name, home, files) for call, home, name in kinds.programs.calls(scope.module)
    ):
        given = _list_handed_on(scope)
    for node in own_nodes(scope.node) if given else ():
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = ast.unparse(node.targets[0])
        values = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
        for value in values:
            if (
                isinstance(value, ast.Call)
                and target in given
                and value in samplers
                and _shuffles(value, scope, files)
                and not NOT_TRAINED.search(target)
            ):
                yield value, scope


def _find_own(call: ast.Call, scope: Scope, files: Files) -> Scope | None:
    """Return the class of the files whose sampler a call makes, where that draws its order by the epoch."""
    owner = files.find_class(call.func, scope)
    return owner if owner is not None and orders_by_epoch(owner) else None


def _list_samplers(call: ast.Call, name: str, scope: Scope, files: Files) -> list[ast.expr]:
    """Return the sampler that a loader is given, if any; also one of a class of the files, or that is chosen before."""
    place = 3 if name in LOADERS else 0 if name in BATCHES else None
    sampler = find_keyword(call, "sampler", place)
    known = sampler is not None and (place is not None or _makes_loader(call.func, scope, files))
    return [sampler] if sampler is not None and known else []


def _makes_loader(func: ast.expr, scope: Scope, files: Files) -> bool:
    """Whether what is called is a loader's class, or one of the files, whichever of them: what was not read is not."""
    found = scope.lookup(func.id) if isinstance(func, ast.Name) else None
    ways = [each for value in (found[1] if found is not None else [func])
            for each in ([value.body, value.orelse] if isinstance(value, ast.IfExp) else [value])]  # fmt: skip
    return all(
        files.dotted(each, scope) in LOADERS or files.find_class(each, scope) is not None for each in ways
    )


def _is_wrapped_elsewhere(scope: Scope, kinds: Kinds) -> bool:
    """Whether what was not read, and may set the epoch, gets a loader of the scope: ``loader = Endless(loader)``."""
    files = kinds.files
    values = [each.value for each in own_nodes(scope.node) if isinstance(each, ast.Assign)]
    calls = [each for each in values if isinstance(each, ast.Call)]
    loaders = {
        name
        for name, bound in scope.bound.items()
        for value in bound
        if isinstance(value, ast.Call) and files.dotted(value.func, scope) in LOADERS
    }
    return any(
        any(isinstance(given, ast.Name) and given.id in loaders for given in call.args)
        and files.function(call.func, scope) is None
        and files.find_class(call.func, scope) is None
        and (files.dotted(call.func, scope) or "").split(".")[0] not in KNOWN_ROOTS
        for call in calls
    )


def _list_handed_on(scope: Scope) -> set[str]:
    """Return the variables that a function returns, or puts into a list that it returns."""
    nodes = list(own_nodes(scope.node))
    values = [each.value for each in nodes if isinstance(each, ast.Return) and each.value is not None]
    names = {part.id for each in values for part in ast.walk(each) if isinstance(part, ast.Name)}
    for each in nodes:
        if (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr == "append"
            and ast.unparse(each.func.value) in names
        ):
            names |= {
                part.id for value in each.args for part in ast.walk(value) if isinstance(part, ast.Name)
            }
    return names


def _shuffles(sampler: ast.Call, scope: Scope, files: Files) -> bool:
    owner = _find_own(sampler, scope, files)
    first = owner.functions.get("__init__") if owner is not None else None
    if first is not None:
        shuffle = find_value(Frame(sampler, scope, first), "shuffle")
    else:
        shuffle = find_keyword(sampler, "shuffle", 3)
    data = find_keyword(sampler, "dataset", 0)
    return (
        is_spelled_out(sampler)
        and find_keyword(sampler, "seed", 4 if owner is None else None) is None
        and (shuffle is None or not isinstance(shuffle, ast.Constant) or shuffle.value is True)
        and data is not None
        and not NOT_TRAINED.search(ast.unparse(data))
    )


def _trains_without(module: Scope, kinds: Kinds) -> bool:
    """Whether a program trains in epochs, and nothing in its files may set that of a sampler."""
    members = kinds.programs.members(module)
    lines = (line for member in members for line in member.script.lines)
    if any(SETS.search(line) and not PASSES_ON.match(line) for line in lines):
        return False
    if any(map(sets_otherwise, members)) or any(
        name in SAMPLERS and names_epoch(find_keyword(call, "seed", 4))
        for call, _, name in kinds.programs.calls(module)
    ):
        return False
    imports = [name for member in members for scope in member.walk() for name in scope.imports.values()]
    called = (name for _, _, name in kinds.programs.calls(module))
    if any(map(FRAMEWORKS.search, (*imports, *called))):
        return False
    epochs = any(_counts_epochs(node) for member in members for node in ast.walk(member.node))
    return epochs and any(is_backward(call) for call, _, _ in kinds.programs.calls(module))


def _counts_epochs(node: ast.AST) -> bool:
    """Whether it is a loop over epochs: ``for epoch in range(epochs)``, ``while epoch < epochs``."""
    if isinstance(node, ast.While):
        left = node.test.left if isinstance(node.test, ast.Compare) else None
        return isinstance(left, (ast.Name, ast.Attribute)) and "epoch" in ast.unparse(left).lower()
    return (
        isinstance(node, ast.For)
        and "epoch" in ast.unparse(node.target).lower()
        and isinstance(node.iter, ast.Call)
        and ast.unparse(node.iter) != "range(1)"
    )


@check("DAT002", family="source", needs=NEEDS, id="lint.epoch_told", commands=LINT)
def tell_forgotten_epoch(evidence: Evidence) -> Iterable[Finding]:
    """A program that trains for epochs never tells its sampler which one it is."""
    known = {fact.place for fact in facts_of(evidence, "epoch-unset")}
    for fact in facts_of(evidence, "epoch-forgotten"):
        if fact.place in known:
            continue
        yield tell_fact(
            fact,
            f"No file of the program calls set_epoch of the DistributedSampler made at {name_line(fact.place)}: each "
            "epoch has the same order.",
            Fix("set it before each pass", code="for epoch in range(epochs):\n    sampler.set_epoch(epoch)"),
            why="a loader is given the sampler, and the program trains in a loop over epochs",
            severity="warning",
        )
