"""DDP006: an optimizer holds parameters that FullyShardedDataParallel or fully_shard replaces afterwards."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import FSDP1, FSDP2
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_argument, find_calls, find_keyword, is_false
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

PARAMETERS = frozenset({"parameters", "named_parameters"})


@lint_rule("optimizer-before-wrap", reads="files")
def find_optimizers(files: Files) -> Iterator[SourceFact]:
    """Yield optimizers of a model's parameters that are made before the model is sharded (``optimizer-before-wrap``).

    FullyShardedDataParallel puts the parameters into flat ones of its own, unless ``use_orig_params=True``, and
    fully_shard registers DTensors in their place: an optimizer has to be made after it
    (https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel). Both stand in one
    function, or in functions that it calls, and no other optimizer is made behind the wrap, which is beside.

    way: ``flat`` or ``sharded``.
    """
    kinds = kinds_of(files)
    sharding = kinds.programs.scopes_calling(FSDP1 | FSDP2)
    found = {scope: [each for each in find_calls(scope) if _shards(each, scope, kinds)] for scope in sharding}
    within = {scope: calls for scope, calls in found.items() if calls}
    around = {home for scope in within for _, home in kinds.callers(scope)}
    for scope in (each for module in files.modules for each in module.walk()):
        if scope not in within and scope not in around:
            continue
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
                    home = scope if wrap in within.get(scope, ()) else kinds.called(wrap, scope)
                    sharded = home is not None and _is_sharded(
                        wrap if home is scope else within[home][0], home, kinds
                    )
                    way = "sharded" if sharded else "flat"
                    yield SourceFact("optimizer-before-wrap", scope.place(each), beside, {"way": way})


def _find_wrapped(
    call: ast.Call, scope: Scope, within: Mapping[Scope, Sequence[ast.Call]], kinds: Kinds
) -> tuple[Value, ...]:
    """Return the model that a call shards, itself or in the function that it calls; nothing for others."""
    if call in within.get(scope, ()):
        return kinds.find(call.args[0], scope)
    function = kinds.called(call, scope)
    inner = within.get(function, ()) if function is not None else ()
    named = {each.args[0].id for each in inner if isinstance(each.args[0], ast.Name)}
    given = named.intersection(function.parameters) if function is not None else set()
    if function is None or len(given) != 1:
        return ()
    own = find_argument(call, function, given.pop())
    return kinds.find(own, scope) if own is not None else ()


def _shards(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    """Whether a call puts other parameters into a model."""
    if not call.args:
        return False
    original = find_keyword(call, "use_orig_params")
    flat = kinds.files.dotted(call.func, scope) in FSDP1 and (original is None or is_false(original))
    return flat or _is_sharded(call, scope, kinds)


def _is_sharded(call: ast.Call, scope: Scope, kinds: Kinds) -> bool:
    return kinds.files.dotted(call.func, scope) in FSDP2


def _holds(optimizer: Value, models: tuple[Value, ...], kinds: Kinds) -> bool:
    """Whether an optimizer was given the parameters of one of some models, where it was made."""
    home = optimizer.scope
    for given in optimizer.call.args[:1] if home is not None else ():
        for owner, scope in _list_owners(given, home, kinds) if home is not None else ():
            found = kinds.find(owner, scope)
            if found and all(any(each.may_be(model) for model in models) for each in found):
                return True
    return False


def _list_owners(given: ast.expr, scope: Scope, kinds: Kinds) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the models of which an expression, or a function that it calls, takes the parameters, each in its scope."""
    for call in ast.walk(given):
        if not isinstance(call, ast.Call):
            continue
        function = kinds.called(call, scope)
        for each, home in (
            [(call, scope)] if function is None else ((one, function) for one in find_calls(function))
        ):
            if isinstance(each.func, ast.Attribute) and each.func.attr in PARAMETERS:
                yield each.func.value, home


@check("DDP006", family="source", needs=NEEDS, id="lint.optimizer_before_wrap", commands=LINT)
def tell_optimizers(evidence: Evidence) -> Iterable[Finding]:
    """An optimizer is made of parameters that the wrap replaces."""
    for fact in facts_of(evidence, "optimizer-before-wrap"):
        flat = fact.details.get("way") == "flat"
        what = "FullyShardedDataParallel" if flat else "fully_shard"
        yield tell_fact(
            fact,
            f"The optimizer at {name_line(fact.place)} gets the parameters of the model before {what} at "
            f"{name_line(fact.related[0].place)} replaces them by {'flat ones' if flat else 'DTensors'}: its steps do "
            "not change the model.",
            Fix(
                "shard the model first",
                code=f"{'model = FullyShardedDataParallel' if flat else 'fully_shard'}(model)\n"
                "optimizer = torch.optim.AdamW(model.parameters())",
            ),
            why="without use_orig_params=True the model keeps none of the parameters that it had"
            if flat
            else "fully_shard registers a new parameter for each that the model had",
        )
