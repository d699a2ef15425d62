"""DDP006: an optimizer holds parameters that FullyShardedDataParallel replaces afterwards."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import FSDP1
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_argument, find_calls, find_keyword, is_false
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact


@lint_rule("optimizer-before-wrap", reads="files")
def find_optimizers(files: Files) -> Iterator[SourceFact]:
    """Yield optimizers of a model's parameters that are made before the model is sharded (``optimizer-before-wrap``).

    FullyShardedDataParallel puts the parameters into flat ones of its own, unless ``use_orig_params=True``: an
    optimizer has to be made after it
    (https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel). Both stand in one
    function, or in functions that it calls, and no other optimizer is made behind the wrap, which is beside.
    """
    kinds = kinds_of(files)
    every = [scope for module in files.modules for scope in module.walk()]
    within = {scope: [each for each in find_calls(scope) if _shards(each, scope, kinds)] for scope in every}
    for scope in every if any(within.values()) else ():
        wraps = [
            (call, inner)
            for call in find_calls(scope)
            if (inner := _find_wrapped(call, scope, within, kinds))
        ]
        if not wraps:
            continue
        made = [(each, kinds.find(each, scope)) for each in find_calls(scope)]
        optimizers = [pair for pair in made if pair[1] and all(v.kind == "optimizer" for v in pair[1])]
        flow = kinds.flow(scope)
        for wrap, inner in wraps:
            own = flow.spot(wrap)
            spots = [flow.spot(each) for each, _ in optimizers]
            if own is None or any(spot is None or not spot.surely_before(own) for spot in spots):
                continue
            for each, values in optimizers:
                if all(_holds(value, inner, kinds) for value in values):
                    beside = (RelatedPlace("noticed", scope.place(wrap)),)
                    yield SourceFact("optimizer-before-wrap", scope.place(each), beside)


def _find_wrapped(
    call: ast.Call, scope: Scope, within: Mapping[Scope, Sequence[ast.Call]], kinds: Kinds
) -> tuple[Value, ...]:
    """Return the model that a call shards, itself or in the function that it calls; nothing for others."""
    if call in within[scope]:
        return kinds.find(call.args[0], scope)
    function = kinds.called(call, scope)
    inner = within.get(function, ()) if function is not None else ()
    given = inner[0].args[0] if len(inner) == 1 else None
    if function is None or not isinstance(given, ast.Name) or given.id not in function.parameters:
        return ()
    own = find_argument(call, function, given.id)
    return kinds.find(own, scope) if own is not None else ()


def _shards(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether a call puts the parameters of a model into flat ones."""
    if kinds.files.dotted(call.func, scope) not in FSDP1 or not call.args:
        return False
    original = find_keyword(call, "use_orig_params")
    return original is None or is_false(original)


def _holds(optimizer: Value, models: tuple[Value, ...], kinds: Kinds) -> bool:
    """Whether an optimizer was given the parameters of one of some models, where it was made."""
    home = optimizer.scope
    for given in optimizer.call.args[:1] if home is not None else ():
        for call in ast.walk(given):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "parameters"
                and home is not None
            ):
                found = kinds.find(call.func.value, home)
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
