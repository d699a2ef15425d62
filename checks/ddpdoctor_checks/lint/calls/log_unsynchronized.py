"""NUM005: a LightningModule logs a value of each rank's samples, and nothing synchronizes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.walking import (
    find_calls,
    find_keyword,
    is_false,
    is_spelled_out,
    names_in,
    own_nodes,
)
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact, tell_question

MODULES = re.compile(r"^(?:lightning|pytorch_lightning)\b.*\bLightningModule$")
TRAINERS = re.compile(r"^(?:lightning|pytorch_lightning)\b.*\bTrainer$")
STEPS = ("validation_step", "test_step")
"""Methods whose values Lightning averages over the epoch, on each rank by itself unless ``sync_dist`` is set
(lightning.ai, LightningModule.log)."""
DISTRIBUTES = re.compile(r"ddp|fsdp|deepspeed|xla", re.IGNORECASE)
"""Texts of strategies of several ranks."""
COUNTS = ("devices", "gpus", "num_nodes")
"""Arguments of a Trainer that are numbers of devices or nodes."""
JOINS = re.compile(r"gather|reduce|sync|world_size", re.IGNORECASE)
"""Names of what may join the values of all ranks, or of tests that look at how many there are."""
METRICS = re.compile(r"metric|meter|evaluator", re.IGNORECASE)
"""Names of objects that may synchronize by themselves, as those of torchmetrics do."""
DEEPEST = 4


@lint_rule("log-unsynchronized", reads="files")
def find_logged(files: Files) -> Iterator[SourceFact]:
    """Yield the first value of a class that is logged for a whole evaluation (``log-unsynchronized``).

    That is one that the step computed, from no metric object, given to ``self.log`` without ``sync_dist``. name: what
    it is logged as; method: the step. several: not empty where a Trainer beside it has several devices.
    """
    kinds = kinds_of(files)
    for module in files.modules:
        for owner in module.walk() if _imports_lightning(module) else ():
            if isinstance(owner.node, ast.ClassDef) and _is_module(owner, files):
                found = next(_find_in_class(owner, files), None)
                if found is not None:
                    call, step = found
                    several = (
                        "yes" if kinds.programs.any_file(module, _has_several, owner.name, kinds) else ""
                    )
                    name = ast.unparse(call.args[0])
                    details = {"name": name, "method": step.name or "", "several": several}
                    yield SourceFact("log-unsynchronized", step.place(call), details=details, certain=False)


def _imports_lightning(module: Scope) -> bool:
    return any(name.split(".")[0] in ("lightning", "pytorch_lightning") for name in module.imports.values())


def _is_module(owner: Scope, files: Files, depth: int = 0) -> bool:
    """Whether a class of the files is a LightningModule, by its bases."""
    home = owner.outer or owner
    for base in getattr(owner.node, "bases", ()):
        above = files.find_class(base, home)
        if above is not None and above is not owner and depth < DEEPEST:
            if _is_module(above, files, depth + 1):
                return True
        elif MODULES.search(files.dotted(base, home) or ""):
            return True
    return False


def _find_in_class(owner: Scope, files: Files) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that log what a step computed, with the step."""
    for name in STEPS:
        step = owner.functions.get(name)
        if step is None or any(JOINS.search(each) and each != "sync_dist" for each in names_in(step.node)):
            continue
        for call in find_calls(step):
            if (
                ast.unparse(call.func) == "self.log"
                and len(call.args) > 1
                and is_spelled_out(call)
                and not _may_synchronize(call)
                and _is_computed(call.args[1], step, owner, files)
            ):
                yield call, step


def _may_synchronize(call: ast.Call) -> bool:
    given = find_keyword(call, "sync_dist")
    alone = find_keyword(call, "rank_zero_only")
    return any(each is not None and not is_false(each) for each in (given, alone))


def _is_computed(value: ast.expr, step: Scope, owner: Scope, files: Files, depth: int = 0) -> bool:
    """Whether a value comes from a loss of the step: from calls and arithmetic, and from no object with a state."""
    for node in ast.walk(value):
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value) == "self"
            and METRICS.search(node.attr)
        ):
            return False
    if isinstance(value, ast.Name):
        found = step.lookup(value.id)
        bound = found[1] if found is not None and found[0] is step else []
        values = [_find_unpacked(value.id, step) if each is UNKNOWN else each for each in bound]
        return (
            depth < DEEPEST
            and bool(values)
            and "loss" in value.id.lower()
            and all(
                isinstance(each, ast.expr) and _is_computed(each, step, owner, files, depth + 1)
                for each in values
            )
        )
    if isinstance(value, ast.Call):
        return not JOINS.search(ast.unparse(value.func)) and not METRICS.search(ast.unparse(value.func))
    return isinstance(value, (ast.BinOp, ast.Subscript, ast.Tuple))


def _find_unpacked(name: str, step: Scope) -> ast.Call | None:
    """Return the call whose result is taken apart into a variable: ``loss, output = self.shared_step(batch)``."""
    for node in own_nodes(step.node):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and name in names_in(target):
                    return node.value
    return None


def _has_several(member: Scope, name_of_class: str, kinds: Kinds) -> bool:
    """Whether a file that names a class makes a Trainer of several devices."""
    return name_of_class in set(names_in(member.node)) and any(
        TRAINERS.search(name) and any(_is_several(each.arg or "", each.value) for each in call.keywords)
        for call, _, name in kinds.programs.list_calls(member)
    )


def _is_several(name: str, value: ast.expr) -> bool:
    if name in ("strategy", "accelerator", "distributed_backend", "plugins"):
        return DISTRIBUTES.search(ast.unparse(value)) is not None
    if name not in COUNTS:
        return False
    if isinstance(value, (ast.List, ast.Tuple)):
        return len(value.elts) > 1
    return isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value > 1


@check("NUM005", family="source", needs=("sources",), id="lint.logged", commands=LINT)
def tell_logged(evidence: Evidence) -> Iterable[Finding]:
    """Lightning logs the average over the samples of one rank."""
    for fact in facts_of(evidence, "log-unsynchronized"):
        name, method = fact.details["name"], fact.details["method"]
        said = f"{method} logs {name} without sync_dist at {name_line(fact.place)}"
        fix = Fix("average it across ranks", code=f"self.log({name}, value, sync_dist=True)")
        why = "Lightning averages a logged value over the batches of the rank, and across ranks only with sync_dist"
        if fact.details["several"]:
            words = f"{said}: what is logged is the average of one rank's shard."
            yield tell_fact(fact, words, fix, why=why, severity="warning")
        else:
            yield tell_question(fact, f"{said}: is it ever run on several devices?", fix, why=why)
