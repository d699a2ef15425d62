"""DDP006: an optimizer holds parameters that FullyShardedDataParallel replaces afterwards."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import FSDP1
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, is_true
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact


@lint_rule("optimizer-before-wrap", reads="files")
def find_optimizers(files: Files) -> Iterator[SourceFact]:
    """Yield optimizers of a model's parameters that are made before the model is sharded (``optimizer-before-wrap``).

    FullyShardedDataParallel puts the parameters into flat ones of its own, unless ``use_orig_params=True``: an
    optimizer has to be made after it
    (https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel). Both stand in one
    function, and no other optimizer is made behind the wrap, which is beside.
    """
    kinds = kinds_of(files)
    for module in files.modules:
        for scope in module.walk():
            wraps = [
                each for each in find_calls(scope) if files.dotted(each.func, scope) in FSDP1 and each.args
            ]
            if not wraps:
                continue
            made = [(each, kinds.find(each, scope)) for each in find_calls(scope)]
            optimizers = [call for call, found in made if found and all(v.kind == "optimizer" for v in found)]
            flow = kinds.flow(scope)
            for wrap in wraps:
                own, original = flow.spot(wrap), find_keyword(wrap, "use_orig_params")
                if own is None or (original is not None and not _is_false(original)):
                    continue
                spots = [(each, flow.spot(each)) for each in optimizers]
                if any(spot is None or not spot.surely_before(own) for _, spot in spots):
                    continue
                inner = kinds.find(wrap.args[0], scope)
                for each, _ in spots:
                    if _holds(each, inner, scope, kinds):
                        beside = (RelatedPlace("noticed", scope.place(wrap)),)
                        yield SourceFact("optimizer-before-wrap", scope.place(each), beside)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not is_true(node)


def _holds(optimizer: ast.Call, models: tuple[Value, ...], scope: Scope, kinds: Kinds) -> bool:
    """Whether an optimizer is given the parameters of one of some models."""
    for given in optimizer.args[:1]:
        for call in ast.walk(given):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "parameters"
            ):
                found = kinds.find(call.func.value, scope)
                if found and all(any(each.may_be(model) for model in models) for each in found):
                    return True
    return False


@check("DDP006", family="source", needs=NEEDS, id="lint.optimizer_before_wrap", commands=LINT)
def tell_optimizers(evidence: Evidence) -> Iterable[Finding]:
    """An optimizer is made of parameters that the wrap replaces."""
    for fact in facts_of(evidence, "optimizer-before-wrap"):
        yield tell_fact(
            fact,
            f"The optimizer at {name_line(fact.place)} gets the parameters of the model before "
            f"FullyShardedDataParallel at {name_line(fact.related[0].place)} replaces them by flat ones: its steps do "
            "not change the model.",
            Fix(
                "wrap the model first",
                code="model = FullyShardedDataParallel(model)\noptimizer = torch.optim.AdamW(model.parameters())",
            ),
            why="without use_orig_params=True the model keeps none of the parameters that it had",
        )
