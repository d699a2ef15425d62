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
from ddpdoctor.source.resolve.walking import find_argument, find_calls, own_nodes
from ddpdoctor.source.training.checkpoints import Holder, find_entries, find_holders, read_key
from ddpdoctor.source.training.train_loops import is_backward
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

OPTIMIZER = re.compile(r"optim|\bopt(_\w+)?\b|\b(\w+_)?opt\b", re.IGNORECASE)
"""Names of optimizers."""
MODEL = re.compile(r"model|net\b|network|encoder|decoder|ema\b|teacher|student|backbone", re.IGNORECASE)
"""Names of models, also in ``unwrap(model_ema)``."""
PROGRESS = re.compile(r"epoch|iter|step|best|sched", re.IGNORECASE)
"""Keys of a checkpoint that a training goes on from."""
GOES_ON = re.compile(r"start|resume|begin|first|init|last|cur|best|iter_num|global_step|sched", re.IGNORECASE)
"""Names of what is set to them where it does."""
OF_SETTINGS = re.compile(
    r"^(\w+\.)*(cfg|conf|config|configs|opt|opts|args|params|hparams|hps|settings)(\[|\.get)"
)
"""What is asked for a key of a configuration, which may have the name of one of a checkpoint."""
RESTORES = re.compile(r"load|resum|restor|prepare|recover", re.IGNORECASE)


@lint_rule("optimizer-lost", reads="files")
def find_lost_optimizers(files: Files) -> Iterator[SourceFact]:
    """Yield where a training goes on from a checkpoint and its optimizer does not (``optimizer-lost``).

    key: under which the state of the optimizer is saved; the line that saves it is beside it. Nothing where any file of
    the program reads that key, loads the state of an optimizer, or gives one to a function that was not read and may.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    loading = kinds.programs.scopes_calling(["torch.load"])
    for module in files.modules:
        loads = [
            (call, scope)
            for scope in module.walk()
            if scope in loading
            for call in find_calls(scope)
            if _loads(call, scope, files)
        ]
        resumed = [each for each in loads if each[0] not in told and _goes_on(*each, kinds)]
        if not resumed or not kinds.programs.is_distributed(module):
            continue
        members = kinds.programs.members(module)
        saved = next((each for member in members for each in _find_saved(member, kinds)), None)
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


def _goes_on(load: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether a model gets what was loaded, and something that counts the training is set from it too."""
    holders = [each for each in find_holders(load, scope, kinds) if each.names]
    return any(map(_restores_model, holders)) and any(_restores_progress(each, kinds) for each in holders)


def _restores_model(holder: Holder) -> bool:
    return any(
        not (OPTIMIZER.search(owner) or "sched" in owner.lower() or "scaler" in owner.lower())
        for owner, _ in _find_restored(holder.scope)
    )


def _find_restored(scope: Scope) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of ``load_state_dict`` in a function, with what it is called of."""
    for call in find_calls(scope):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict":
            yield ast.unparse(call.func.value), call


def _restores_progress(holder: Holder, kinds: Kinds) -> bool:
    scope = holder.scope
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Return) and node.value is not None:
            if PROGRESS.search(" ".join(holder.read_keys(node.value))):
                return True
        elif isinstance(node, ast.Assign) and PROGRESS.search(" ".join(holder.read_keys(node.value))):
            targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
            if any(_goes_on_from(each, scope, kinds) for each in targets):
                return True
    return any(
        "sched" in owner.lower() and any(holder.read_keys(each) for each in call.args)
        for owner, call in _find_restored(scope)
    )


def _goes_on_from(target: ast.expr, scope: Scope, kinds: Kinds) -> bool:
    """Whether what is set from a checkpoint is where a training goes on: by its name, or because it is counted on."""
    text = ast.unparse(target)
    if GOES_ON.search(text):
        return True
    nodes = list(own_nodes(scope.node))
    if isinstance(target, ast.Name):
        returned = (each.value for each in nodes if isinstance(each, ast.Return) and each.value is not None)
        if any(getattr(each, "id", "") == text for value in returned for each in ast.walk(value)):
            return True
    elif isinstance(target, ast.Attribute):
        members = kinds.programs.members(scope.module)
        nodes = [node for member in members for each in member.walk() for node in own_nodes(each.node)]
    else:
        return False
    return any(_counts_on(node, target) for node in nodes)


def _counts_on(node: ast.AST, target: ast.expr) -> bool:
    """Whether a node counts a number further: ``step += 1``, ``range(epoch, epochs)``."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Add) and _is_same(node.target, target)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range" and len(node.args) > 1:
        return any(_is_same(each, target) for each in ast.walk(node.args[0]))
    return False


def _is_same(node: ast.AST, target: ast.expr) -> bool:
    """Whether both are one variable, or attributes of one name."""
    if isinstance(target, ast.Attribute):
        return isinstance(node, ast.Attribute) and node.attr == target.attr
    return isinstance(node, ast.Name) and node.id == getattr(target, "id", None)


def _find_saved(module: Scope, kinds: Kinds) -> Iterator[tuple[ast.expr, str, Scope]]:
    """Yield the values of tables that are the state of an optimizer, with their keys, beside that of a model."""
    for scope in module.walk():
        for node in own_nodes(scope.node):
            for key, value in find_entries(node):
                if any(map(_is_optimizer_state, _list_values(value, scope, kinds))):
                    yield value, key, scope


def _list_values(value: ast.expr, scope: Scope, kinds: Kinds) -> Iterator[ast.AST]:
    """Yield what a value is made of; of a variable or parameter what it holds, or is given."""
    yield from ast.walk(value)
    if isinstance(value, ast.Name):
        yield from scope.bound.get(value.id, ())
        if value.id in scope.parameters:
            given = (find_argument(call, scope, value.id) for call, _ in kinds.callers(scope))
            yield from (each for each in given if isinstance(each, ast.AST))


def _is_optimizer_state(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "state_dict"
        and OPTIMIZER.search(ast.unparse(node.func.value)) is not None
    )


def _may_restore(members: Iterable[Scope], key: str, kinds: Kinds) -> bool:
    """Whether a file of the program may give an optimizer its state back; to ask whether it is there gives nothing."""
    for member in members:
        for scope in member.walk():
            asked = {
                id(each)
                for node in own_nodes(scope.node)
                if isinstance(node, ast.If)
                and not any(isinstance(n, ast.NamedExpr) for n in ast.walk(node.test))
                for each in ast.walk(node.test)
            }
            for node in own_nodes(scope.node):
                if isinstance(getattr(node, "ctx", None), ast.Store) or id(node) in asked:
                    continue
                if read_key(node) == key and not OF_SETTINGS.search(ast.unparse(node)):
                    return True
                if isinstance(node, ast.Call) and _may_be_restoring(node, scope, kinds):
                    return True
    return False


def _may_be_restoring(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict":
        plain = isinstance(call.func.value, (ast.Name, ast.Attribute))
        owner = ast.unparse(call.func.value)
        if (scope.name or "").endswith("load_state_dict") and owner.startswith("super("):
            return False  # whoever calls it would restore
        if isinstance(call.func.value, ast.Name) and call.func.value.id in scope.loops:
            return True  # of each object of a table
        return OPTIMIZER.search(owner) is not None or not (plain or MODEL.search(owner))
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
