"""DAT002: a sampler that shuffles is not told the epoch, or takes no notice of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import SAMPLERS
from ddpdoctor.source.resolve.flow import name_of
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.makers import find_class_kind
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_keyword, is_spelled_out, name_last, names_in, own_nodes
from ddpdoctor.source.sameness.alike import SETTINGS
from ddpdoctor.source.training.train_loops import (
    TrainingLoop,
    enclosing_loops,
    loaders_of,
    note_loader,
    runs_again,
    samplers_of,
    training_loops,
)
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import find_call, name_target, read_line

FEW_RANKS = 4
"""A rank of so many may have its whole share in one batch, whose order does not matter."""


ORDERING = ("epoch", "seed")
"""Attributes of a sampler by which it draws its order."""


@lint_rule("epoch-unset", "epoch-unused", reads="files")
def find_epoch_unset(files: Files) -> Iterator[SourceFact]:
    """Yield samplers whose ``set_epoch`` nobody calls in the loop over epochs (``epoch-unset``).

    way: ``never``, ``once`` (outside of all loops) or ``other`` (that of another sampler is called). Where that one is
    what a loader makes for itself beside a batch sampler, the call is the mistake (``epoch-unused``).
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or not runs_again(loop.node, loop.scope, kinds):
            continue
        loaders = loaders_of(loop.node.iter, loop.scope, kinds)
        by_loader = [(loader, _list_known(loader, kinds)) for loader in loaders]
        # those that keep their order are for an evaluation in the same loop
        by_loader = [(loader, own) for loader, own in by_loader if own and all(map(_is_shuffling, own))]
        samplers = [each for _, own in by_loader for each in own]
        if not samplers or any(_is_one_batch(loader) for loader, _ in by_loader):
            continue
        around = enclosing_loops(loop.node, loop.scope, kinds)
        if any(_stands_in(loader.call, around) for loader in loaders):
            continue  # made anew in each epoch
        if not around and any(v.scope is loop.scope for each in loop.forwards for v in each.values):
            continue  # a training of its own each time
        way = _find_way(samplers, loop, kinds)
        for each in samplers if way else ():
            if each.call not in told:
                told.add(each.call)
                name = each.owner.name if each.owner is not None else None
                fact = note_loader(
                    each, "epoch-unset", loop, way=way or "", sampler=name or "DistributedSampler"
                )
                yield _note_unused(fact, loop.scope.module, kinds) if way == "other" else fact


def _note_unused(fact: SourceFact, module: Scope, kinds: Kinds) -> SourceFact:
    """Return ``epoch-unused``, at the call, where ``set_epoch`` is called of a sampler that its loader does not use."""
    for call, scope, _ in kinds.programs.calls(module):
        if isinstance(call.func, ast.Attribute) and _is_unused(call.func, scope, kinds):
            details = {**fact.details, "sampler_at": name_line(fact.place), "made": "elsewhere"}
            return replace(fact, rule="epoch-unused", place=scope.place(call), details=details)
    return fact


def _list_known(loader: Value, kinds: Kinds) -> list[Value]:
    """Return the samplers of a loader that are torch's for several ranks or of the files; others may be beside them.

    With ``DistributedSampler(data) if gpus > 1 else None`` the other one is for a run of one rank.
    """
    return [each for each in samplers_of(loader, kinds) if each.name in SAMPLERS or each.owner is not None]


def _is_shuffling(sampler: Value) -> bool:
    if sampler.kind == "sampler" and sampler.owner is not None:
        return orders_by_epoch(sampler.owner)
    if sampler.kind != "sampler" or sampler.name not in SAMPLERS or not is_spelled_out(sampler.call):
        return False
    if names_epoch(find_keyword(sampler.call, "seed", 4)):
        return False
    shuffle = find_keyword(sampler.call, "shuffle", 3)
    return shuffle is None or not isinstance(shuffle, ast.Constant) or shuffle.value is True


def names_epoch(seed: ast.expr | None) -> bool:
    """Whether a seed speaks of the epoch."""
    return seed is not None and any("epoch" in name.lower() for name in names_in(seed))


def orders_by_epoch(owner: Scope) -> bool:
    """Whether a sampler of the files draws its order by the epoch that ``set_epoch`` alone gives it."""
    order, setter = owner.functions.get("__iter__"), owner.functions.get("set_epoch")
    kept = _attributes_kept(setter) if setter is not None else None
    if order is None or not kept or not _shuffles_by_seed(owner, order):
        return False
    set_elsewhere = {
        node.attr
        for name, method in owner.functions.items()
        if name not in ("__init__", "set_epoch")
        for node in own_nodes(method.node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return bool(kept & _attributes_read(owner)) and not kept & set_elsewhere


def _is_one_batch(loader: Value) -> bool:
    """Whether a batch may be all that a rank has: sizes that the script spells out, on up to `FEW_RANKS` ranks."""
    data, batch = find_keyword(loader.call, "dataset", 0), find_keyword(loader.call, "batch_size", 1)
    if (
        not isinstance(batch, ast.Constant)
        or not isinstance(batch.value, int)
        or data is None
        or not loader.scope
    ):
        return False
    found = [data, *(loader.scope.lookup(data.id) or (None, []))[1]] if isinstance(data, ast.Name) else [data]
    for each in found:
        while isinstance(each, (ast.Call, ast.Name)):
            if isinstance(each, ast.Name):
                known = loader.scope.lookup(each.id)
                each = known[1][0] if known is not None and len(known[1]) == 1 else ast.Constant(None)
            else:
                each = each.args[0] if each.args else ast.Constant(None)
        if (
            isinstance(each, ast.Constant)
            and isinstance(each.value, int)
            and each.value <= FEW_RANKS * batch.value
        ):
            return True
    return False


def _stands_in(node: ast.AST, loops: list[ast.stmt]) -> bool:
    return any(each is node for loop in loops for each in ast.walk(loop))


def _find_way(samplers: list[Value], loop: TrainingLoop, kinds: Kinds) -> str | None:
    """Return how ``set_epoch`` is missed; None where it is called, or that cannot be told."""
    module = loop.scope.module
    if any(map(sets_otherwise, kinds.programs.members(module))):
        return None
    way = "never"
    for call, scope, _ in kinds.programs.calls(module):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "set_epoch":
            continue
        owner = call.func.value
        if _is_unused(call.func, scope, kinds):
            way = "other"
            continue
        if isinstance(owner, ast.Attribute) and owner.attr == "sampler" and name_of(owner) is None:
            held = kinds.find(owner.value, scope)
            values = [v for loader in held for v in samplers_of(loader, kinds) or (loader,)]
        else:
            values = list(kinds.find(owner, scope))
        if any(each.kind not in ("sampler", "dataset", "none") for each in values):
            return None
        if not any(each.may_be(sampler) for each in values for sampler in samplers):
            way = "other" if way == "never" and any(v.kind == "sampler" for v in values) else way
        elif runs_again(call, scope, kinds) or _is_called_elsewhere(scope, kinds):
            return None
        else:
            way = "once"
    return way


def _is_unused(function: ast.Attribute, scope: Scope, kinds: Kinds) -> bool:
    """Whether it is ``loader.sampler.set_epoch`` of loaders that are given a batch sampler.

    Their ``sampler`` is then a SequentialSampler that they never use.
    """
    owner = function.value
    if function.attr != "set_epoch" or not isinstance(owner, ast.Attribute) or owner.attr != "sampler":
        return False
    held = kinds.find(owner.value, scope) if name_of(owner) is None else ()
    return bool(held) and all(
        each.kind == "loader" and find_keyword(each.call, "batch_sampler") is not None for each in held
    )


def sets_otherwise(module: Scope) -> bool:
    """Whether a file sets the ``epoch`` or ``seed`` of what is no settings, or takes ``set_epoch`` by its name."""
    asked = {
        id(each.args[1])
        for each in ast.walk(module.node)
        if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "hasattr" and len(each.args) == 2
    }
    return any(
        (isinstance(each, ast.Constant) and each.value == "set_epoch" and id(each) not in asked)
        or (
            isinstance(each, ast.Attribute)
            and each.attr in ORDERING
            and isinstance(each.ctx, ast.Store)
            and name_last(each.value) not in SETTINGS | {"self"}
        )
        or (isinstance(each, ast.Call) and _sets_by_name(each))
        or (
            isinstance(each, ast.Subscript)
            and isinstance(each.ctx, ast.Store)
            and _is_ordering(each.slice)
            and (isinstance(each.value, ast.Call) or name_last(each.value) == "__dict__")
        )
        for each in ast.walk(module.node)
    )


def _sets_by_name(call: ast.Call) -> bool:
    return name_last(call.func) == "setattr" and len(call.args) == 3 and _is_ordering(call.args[1])


def _is_ordering(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ORDERING


def _is_called_elsewhere(scope: Scope, kinds: Kinds) -> bool:
    """Whether a function is a method whose calls are not known, such as that of a hook."""
    return scope.find_class() is not None and not kinds.callers(scope)


@lint_rule("epoch-ignored", reads="module")
def find_epoch_ignored(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield samplers of the files that shuffle by a seed and do not use the epoch they are told (``epoch-ignored``).

    sampler: the class.
    """
    for scope in module.walk():
        if not isinstance(scope.node, ast.ClassDef) or find_class_kind(scope, files) != "sampler":
            continue
        order, setter = scope.functions.get("__iter__"), scope.functions.get("set_epoch")
        inherits = setter is None and any(
            (files.dotted(base, scope) or "") in SAMPLERS for base in scope.node.bases
        )
        if order is None or not (inherits or setter is not None) or not _shuffles_by_seed(scope, order):
            continue
        kept = {"epoch"} if setter is None else _attributes_kept(setter)
        if kept is not None and kept.isdisjoint(_attributes_read(scope)) and not _calls_super(order):
            told = setter or order
            yield SourceFact("epoch-ignored", told.place(told.node), details={"sampler": scope.node.name})


def _shuffles_by_seed(owner: Scope, order: Scope) -> bool:
    names = set(names_in(order.node))
    shuffles = bool(names & {"randperm", "shuffle", "permutation", "sample"})
    return shuffles and bool(names & {"manual_seed", "Random", "RandomState", "default_rng"})


def _attributes_kept(setter: Scope) -> set[str] | None:
    """Return the attributes that a ``set_epoch`` sets; None where it does more than that."""
    kept = set()
    for node in own_nodes(setter.node):
        if isinstance(node, ast.Call):
            return None
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            kept.add(node.attr)
    return kept


def _attributes_read(owner: Scope) -> set[str]:
    return {
        node.attr
        for name, method in owner.functions.items()
        if name != "set_epoch"
        for node in ast.walk(method.node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def _calls_super(function: Scope) -> bool:
    return "super" in set(names_in(function.node))


@check("DAT002", family="source", needs=("sources",), id="lint.epoch", commands=LINT)
def tell_epoch_unset(evidence: Evidence) -> Iterable[Finding]:
    """A sampler that shuffles is not told the epoch, or takes no notice of it."""
    ways = {
        "never": "set_epoch is never called",
        "once": "its set_epoch is called outside of the loop over epochs",
        "other": "set_epoch of another sampler is called",
    }
    for fact in facts_of(evidence, "epoch-unset"):
        yield tell_fact(
            fact,
            f"The {fact.details['sampler']} at {name_line(fact.place)} shuffles each epoch in the same way: "
            f"{ways[fact.details['way']]}.",
            Fix("call set_epoch before each epoch", code=_tell_epoch(fact)),
            why=(
                "its order depends on its seed and the epoch alone, and the loop iterates over it more than "
                "once"
            ),
        )
    for fact in facts_of(evidence, "epoch-unused"):
        name, made = fact.details["sampler"], fact.details["sampler_at"]
        inner = "batch_sampler.sampler" if name == "DistributedSampler" else "batch_sampler"
        yield tell_fact(
            fact,
            f"set_epoch at {name_line(fact.place)} never reaches the {name} made at {made}, which shuffles each epoch "
            "in the same way: a loader that is given a batch_sampler does not use its sampler.",
            Fix("call set_epoch of the sampler that it uses", code=f"loader.{inner}.set_epoch(epoch)"),
            why="what is called is the SequentialSampler that the loader makes for itself",
        )
    for fact in facts_of(evidence, "epoch-ignored"):
        yield tell_fact(
            fact,
            f"{fact.details['sampler']} shuffles by its seed and ignores the epoch that set_epoch sets "
            f"({name_line(fact.place)}): every epoch has the same order.",
            Fix(
                "make the seed of the order depend on the epoch",
                code="generator.manual_seed(self.seed + self.epoch)",
            ),
            why="no method of the class reads what set_epoch keeps",
        )


def _tell_epoch(fact: SourceFact) -> str:
    """Return the loop over epochs with the sampler and the loop of the place."""
    statement = read_line(fact.place.text)
    sampler = name_target(statement) or "sampler"
    if sampler != "sampler" and find_call(statement, "DataLoader") is not None:
        sampler += ".sampler"
    texts = (each.place.text for each in fact.related)
    loop = next((text for text in texts if isinstance(read_line(text), ast.For)), "for batch in loader:")
    return f"for epoch in range(epochs):\n    {sampler}.set_epoch(epoch)\n    {loop}"
