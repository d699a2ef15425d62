"""CKP007: a training goes on from a checkpoint whose optimizer's state nobody loads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_calls, own_nodes
from ddpdoctor.source.training.train_loops import is_backward
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

OPTIMIZER = re.compile(r"optim|\bopt(_\w+)?\b|\b(\w+_)?opt\b", re.IGNORECASE)
"""Names of optimizers."""
PROGRESS = re.compile(r"epoch|iter|step|best|sched", re.IGNORECASE)
"""Keys of a checkpoint that a training goes on from."""
GOES_ON = re.compile(r"start|resume|begin|first|init|last|cur|best|iter_num|global_step|sched", re.IGNORECASE)
"""Names of what is set to them where it does."""
RESTORES = re.compile(r"load|resum|restor|prepare|recover", re.IGNORECASE)


@lint_rule("optimizer-lost", reads="files")
def find_lost_optimizers(files: Files) -> Iterator[SourceFact]:
    """Yield where a training goes on from a checkpoint and its optimizer does not (``optimizer-lost``).

    key: under which the state of the optimizer is saved; the line that saves it is beside it. Nothing where any file of
    the program reads that key, loads the state of an optimizer, or gives one to a function that was not read and may.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for module in files.modules:
        loads = [
            (call, scope)
            for scope in module.walk()
            for call in find_calls(scope)
            if _loads(call, scope, files)
        ]
        resumed = [(call, scope) for call, scope in loads if call not in told and _goes_on(call, scope)]
        if not resumed or not kinds.programs.is_distributed(module):
            continue
        members = kinds.programs.members(module)
        saved = next((each for member in members for each in _find_saved(member)), None)
        if saved is None or _may_restore(members, saved[1], kinds):
            continue
        if not any(is_backward(call) for call, _, _ in kinds.programs.calls(module)):
            continue
        for call, scope in resumed:
            told.add(call)
            beside = RelatedPlace("noticed", saved[2].place(saved[0]))
            yield SourceFact("optimizer-lost", scope.place(call), (beside,), {"key": saved[1]}, certain=False)


def _loads(call: ast.Call, scope: Scope, files: Files) -> bool:
    return files.dotted(call.func, scope) == "torch.load"


def _goes_on(load: ast.Call, scope: Scope) -> bool:
    """Whether a model gets what was loaded, and something that counts the training is set from it too."""
    names = {
        target.id
        for node in own_nodes(scope.node)
        if isinstance(node, ast.Assign) and any(each is load for each in ast.walk(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given_back = {
        each.id
        for node in own_nodes(scope.node)
        if isinstance(node, ast.Return) and node.value is not None
        for each in ast.walk(node.value)
        if isinstance(each, ast.Name)
    }
    model = progress = False
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign) and PROGRESS.search(" ".join(_keys(node.value, names))):
            targets = [ast.unparse(each) for each in node.targets]
            progress = progress or any(GOES_ON.search(each) or each in given_back for each in targets)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "load_state_dict"
        ):
            owner = ast.unparse(node.func.value)
            model = model or not (OPTIMIZER.search(owner) or "sched" in owner.lower())
            progress = progress or (
                "sched" in owner.lower() and any(_keys(each, names) for each in node.args)
            )
    return bool(names) and model and progress


def _keys(node: ast.AST, names: set[str]) -> list[str]:
    """Return the keys under which something is taken out of a loaded checkpoint."""
    return [key for each in ast.walk(node) if (key := _read_key(each)) is not None and _owner(each) in names]


def _read_key(node: ast.AST) -> str | None:
    """Return ``epoch`` for ``checkpoint["epoch"]`` and ``checkpoint.get("epoch")``."""
    key: ast.AST | None = None
    if isinstance(node, ast.Subscript):
        key = node.slice
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("get", "pop")
    ):
        key = node.args[0] if node.args else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _owner(node: ast.AST) -> str:
    value = (
        node.value if isinstance(node, ast.Subscript) else getattr(getattr(node, "func", None), "value", None)
    )
    return value.id if isinstance(value, ast.Name) else ""


def _find_saved(module: Scope) -> Iterator[tuple[ast.expr, str, Scope]]:
    """Yield the values of tables that are the state of an optimizer, with their keys, beside that of a model."""
    for scope in module.walk():
        for node in own_nodes(scope.node):
            if not isinstance(node, ast.Dict) or len(node.keys) < 2:
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                if (
                    isinstance(key, ast.Constant)
                    and isinstance(key.value, str)
                    and isinstance(value, ast.Call)
                    and isinstance(value.func, ast.Attribute)
                    and value.func.attr == "state_dict"
                    and OPTIMIZER.search(ast.unparse(value.func.value))
                ):
                    yield value, key.value, scope


def _may_restore(members: Iterable[Scope], key: str, kinds: Kinds) -> bool:
    """Whether a file of the program may give an optimizer its state back."""
    for member in members:
        for scope in member.walk():
            for node in own_nodes(scope.node):
                if isinstance(getattr(node, "ctx", None), ast.Store):
                    continue
                if _read_key(node) == key:
                    return True
                if isinstance(node, ast.Call) and _may_be_restoring(node, scope, kinds):
                    return True
    return False


def _may_be_restoring(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict":
        plain = isinstance(call.func.value, (ast.Name, ast.Attribute))
        owner = ast.unparse(call.func.value)
        if isinstance(call.func.value, ast.Name) and call.func.value.id in scope.loops:
            return True  # of each object of a table
        return not plain or OPTIMIZER.search(owner) is not None
    if kinds.called(call, scope) is not None or not RESTORES.search(ast.unparse(call.func)):
        return False
    given = [*call.args, *(each.value for each in call.keywords)]
    return any(OPTIMIZER.search(ast.unparse(each)) for each in given)


@check("CKP007", family="source", needs=NEEDS, id="lint.optimizer_state", commands=LINT)
def tell_lost_optimizer(evidence: Evidence) -> Iterable[Finding]:
    """A training resumes with the model's state and without the optimizer's."""
    for fact in facts_of(evidence, "optimizer-lost"):
        key = fact.details["key"]
        yield tell_fact(
            fact,
            f"The training resumes from the checkpoint loaded at {name_line(fact.place)}, and nothing loads the "
            f"state of the optimizer, which is saved as {key!r} at {name_line(fact.related[0].place)}.",
            Fix("load it too", code=f"optimizer.load_state_dict(checkpoint[{key!r}])"),
            why="the model and the count of epochs or steps are restored from the same file, and no file of the "
            "program reads that key",
            severity="warning",
        )
