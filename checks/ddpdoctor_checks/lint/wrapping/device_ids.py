"""DDP016: device_ids that DistributedDataParallel refuses."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import find_keyword, is_none
from ddpdoctor.source.training.moves import MOVED, STAYS, follow_moves
from ddpdoctor.source.training.wraps import wraps_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact, tell_question
from ddpdoctor_checks.lint.rewriting import rewrite, set_keyword

DEVICES = ("cuda", "gpu", "xpu", "npu", "hpu", "mps", "device", "accelerator", "to_empty")
"""Parts of names and texts by which a program speaks of what is not the CPU."""


@lint_rule("device-ids", "device-ids-doubted", reads="files")
def find_device_ids(files: Files) -> Iterator[SourceFact]:
    """Yield wrappers whose ``device_ids`` cannot be (``device-ids``).

    way: ``several``, ``cpu`` where the device is the CPU, ``nowhere`` where the program moves nothing to a device, or
    ``stays`` where the model is not moved. Where something that is not known may move it, that is asked
    (``device-ids-doubted``).
    """
    kinds = kinds_of(files)
    for wrap in wraps_of(kinds):
        call, scope = wrap.value.call, wrap.scope
        devices = find_keyword(call, "device_ids", 1)
        if not isinstance(devices, ast.List) or any(isinstance(each, ast.Starred) for each in devices.elts):
            continue
        module = scope.module
        if len(devices.elts) > 1:
            way = "several"
        elif devices.elts and _is_cpu(devices.elts[0], scope, files):
            way = "cpu"
        elif (
            devices.elts
            and all(each.kind == "model" and not each.guessed for each in wrap.value.inner)
            and not _moves(module, kinds)
        ):
            way = "nowhere"
        else:
            known = follow_moves(wrap, kinds) if devices.elts else MOVED
            if known == MOVED or is_none(devices.elts[0]):
                continue
            rule = "device-ids" if known == STAYS else "device-ids-doubted"
            yield SourceFact(rule, scope.place(call), details={"way": "stays"})
            continue
        yield SourceFact("device-ids", scope.place(call), details={"way": way})


MOVE = Fix("move the model to the device of this rank first", code="model.to(local_rank)")


def _is_cpu(node: ast.expr, scope: Scope, files: Files) -> bool:
    """Whether an expression is the CPU as a device, as it stands or by the only value of its variable."""
    if isinstance(node, ast.Name):
        found = scope.lookup(node.id)
        return found is not None and len(found[1]) == 1 and _is_cpu(found[1][0], found[0], files)
    if isinstance(node, ast.Call) and files.dotted(node.func, scope) == "torch.device":
        return len(node.args) == 1 and not node.keywords and _is_cpu(node.args[0], scope, files)
    return isinstance(node, ast.Constant) and node.value == "cpu"


def _moves(module: Scope, kinds: Kinds) -> bool:
    """Whether a program speaks of any device but the CPU."""
    for member in kinds.programs.members(module):
        for node in ast.walk(member.node):
            if isinstance(node, ast.Name):
                words = [node.id]
            elif isinstance(node, ast.Attribute):
                if node.attr == "to":
                    return True
                words = [node.attr]
            elif isinstance(node, ast.keyword):
                words = [node.arg or ""] if node.arg != "device_ids" else []
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = [node.value]
            else:
                continue
            if any(part in word.lower() for word in words for part in DEVICES):
                return True
        if any(name.startswith(".") for scope in member.walk() for name in scope.imports.values()):
            return True  # of files that may not have been given
    return False


def _wrap(text: str, devices: str | None) -> str:
    """Return a line that wraps a model with other device_ids, or with none."""

    def change(call: ast.Call) -> None:
        del call.args[1:]
        set_keyword(call, "device_ids", devices)

    more = f", device_ids={devices}" if devices is not None else ""
    example = f"model = DistributedDataParallel(model{more})"
    return rewrite(text, ("DistributedDataParallel", "DDP"), change, example)


@check("DDP016", family="source", needs=("sources",), id="lint.device_ids", commands=LINT)
def tell_device_ids(evidence: Evidence) -> Iterable[Finding]:
    """device_ids that DistributedDataParallel refuses."""
    for fact in facts_of(evidence, "device-ids"):
        several = fact.details["way"] == "several"
        reason = {
            "several": "names several devices: one process uses one",
            "cpu": "names the CPU, which has no number: a module on the CPU takes no device_ids",
            "nowhere": "names a device, and nothing in the program moves the model from the CPU",
            "stays": "names a device, and the model is on the CPU: nothing moves it after it is made",
        }[fact.details["way"]]
        fix = (
            Fix(
                "pass the one device of this rank",
                code=_wrap(fact.place.text, "[local_rank]"),
            )
            if several
            else MOVE
            if fact.details["way"] == "stays"
            else Fix("omit device_ids on the CPU", code=_wrap(fact.place.text, None))
        )
        yield tell_fact(
            fact,
            f"device_ids at {name_line(fact.place)} {reason}.",
            fix,
            why="no name and no string in it mentions a device"
            if fact.details["way"] == "nowhere"
            else "DistributedDataParallel refuses it",
            severity="warning" if fact.details["way"] in ("nowhere", "stays") else None,
        )
    for fact in facts_of(evidence, "device-ids-doubted"):
        yield tell_question(
            fact,
            f"No line that was read moves the model to a device before it is wrapped with device_ids at "
            f"{name_line(fact.place)}: does what makes it, or what it is given to?",
            MOVE,
            why="DistributedDataParallel refuses device_ids for a model on the CPU",
        )
