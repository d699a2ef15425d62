"""DDP: errors of the wrapper that are about gradients, with the parameters that they speak of."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.job import WrappedParameter
from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import choose_form, count_of, join_words, name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure
from ddpdoctor_checks.job.ends.clauses import Clause, Describe

MOST_LISTED = 200
"""Parameters in the details; a model has thousands, a report is read by people."""


def find_parameters(failure: Failure) -> list[WrappedParameter]:
    """Return the parameters that an error names: by the wrapper's own list, else by name, else by index only."""
    groups = failure.groups
    named = [name.strip() for name in groups.get("names", "").split(",") if name.strip()]
    indices = [int(part) for part in groups.get("indices", "").split() if part.isdigit()]
    if groups.get("index", "").isdigit():
        indices.append(int(groups["index"]))
    if groups.get("name"):
        named.append(groups["name"])
    known = {each.index: each for facts in failure.view.wrappers for each in facts.parameters}
    by_name = {each.name: each for each in known.values()}
    if indices and all(index in known for index in indices):
        return [known[index] for index in indices]
    if named:
        return [by_name.get(name, WrappedParameter(-1, name)) for name in named]
    return [known.get(index, WrappedParameter(index, f"parameter {index}")) for index in indices]


def describe_parameters(parameters: Sequence[WrappedParameter]) -> str:
    """Return ``head.weight and head.bias (of Linear head, whose forward never ran)``."""
    owners: dict[tuple[str, str, bool | None], list[str]] = {}
    for each in parameters:
        owners.setdefault((each.module, each.module_class, each.forward_ran), []).append(each.name)
    parts = [f"{join_words(names, few=4)}{_owner(*owner)}" for owner, names in owners.items()]
    return join_words(parts, few=3)


def _owner(module: str, kind: str, ran: bool | None) -> str:
    if not kind and not module:
        return ""
    kind = kind.rpartition(".")[2]
    name = f"{kind or 'module'} {module}" if module else f"the model itself, a {kind}"
    forward = "" if ran is None else f", whose forward {'ran' if ran else 'never ran'}"
    return f" (of {name}{forward})"


def _table(parameters: Sequence[WrappedParameter]) -> dict[str, object]:
    rows = [
        {
            "index": each.index,
            "name": each.name,
            "module": each.module,
            "class": each.module_class,
            "forward_ran": each.forward_ran,
        }
        for each in parameters[:MOST_LISTED]
    ]
    return {"parameters": rows, "parameters_left_out": max(0, len(parameters) - MOST_LISTED)}


def _unused_fixes(parameters: Sequence[WrappedParameter], partial: bool, searched: bool) -> list[Fix]:
    idle = list(
        dict.fromkeys(each.module for each in parameters if each.forward_ran is False and each.module)
    )
    fixes = []
    if idle and not partial:
        freeze = "".join(f"model.get_submodule({name!r}).requires_grad_(False)\n" for name in idle[:8])
        fixes.append(
            Fix(f"freeze or remove {join_words(idle)} before the model is wrapped: no forward pass calls it",
                code=freeze + "model = DistributedDataParallel(model)")
        )  # fmt: skip
    if partial or not idle:
        fixes.append(
            Fix("let these parameters contribute to the loss on every rank, if only with weight zero",
                code="loss = loss + 0.0 * sum(p.sum() for p in model.parameters() if p.requires_grad)")
        )  # fmt: skip
    if not searched:
        fixes.append(
            Fix("or keep them and let DDP search in every step (costs time)",
                code="model = DistributedDataParallel(model, find_unused_parameters=True)")
        )  # fmt: skip
    return fixes


def _searched(failure: Failure) -> bool:
    return any(facts.find_unused_parameters for facts in failure.view.wrappers)


def _describe_unused(diagnosis: Diagnosis, group: Group) -> Clause:
    parameters = find_parameters(group.first)
    names = describe_parameters(parameters) or "some parameters"
    count = f"{count_of(len(parameters), 'parameter')} received" if parameters else "parameters received"
    return Clause(
        f"{count} no gradient in the step before: {names}",
        _unused_fixes(parameters, partial=False, searched=_searched(group.first)),
        _table(parameters),
    )


def _describe_frozen(diagnosis: Diagnosis, group: Group) -> Clause:
    parameters = find_parameters(group.first)
    return Clause(
        f"{count_of(len(parameters), 'parameter')} {choose_form(len(parameters), 'was', 'were')} frozen after "
        "the model was wrapped, and "
        f"DistributedDataParallel waits for their gradients: {describe_parameters(parameters)}",
        (
            Fix("freeze first and wrap last, and wrap again after each later change",
                code="model.backbone.requires_grad_(False)\nmodel = DistributedDataParallel(model)"),
            Fix("or give them a learning rate of 0 instead"),
        ),
        _table(parameters),
        places=tuple(in_frame(each, group.ranks, "culprit") for each in _find_freeze(group)),
    )  # fmt: skip


def _find_freeze(group: Group) -> tuple[Frame, ...]:
    """Return the one statement of the program that freezes parameters; nothing where there are several."""
    found = {each for failure in group.failures for facts in failure.view.wrappers for each in facts.freezes}
    return tuple(found) if len(found) == 1 else ()


def _describe_unused_somewhere(diagnosis: Diagnosis, group: Group) -> Clause:
    sets: dict[tuple[str, ...], list[int]] = {}
    by_set: dict[tuple[str, ...], list[WrappedParameter]] = {}
    for failure in group.failures:
        parameters = find_parameters(failure)
        key = tuple(each.name for each in parameters)
        by_set[key] = parameters
        if failure.rank is not None:
            sets.setdefault(key, []).append(failure.rank)
    told = [
        f"{describe_parameters(by_set[key]) or 'some'} on {name_set(RankSet(who))}"
        for key, who in sets.items()
    ]
    parameters = list({each.name: each for members in by_set.values() for each in members}.values())
    used = diagnosis.world.minus(group.ranks)
    others = f"; {name_set(used)} used all" if used else ""
    return Clause(
        f"parameters received no gradient on some ranks only: {join_words(told, few=3)}{others}",
        _unused_fixes(parameters, partial=True, searched=_searched(group.first)),
        {
            **_table(parameters),
            "by_rank": [{"ranks": str(RankSet(who)), "names": list(key)} for key, who in sets.items()],
        },
    )


def _describe_twice(diagnosis: Diagnosis, group: Group) -> Clause:
    parameters = find_parameters(group.first)
    names = describe_parameters(parameters) or "a parameter"
    searched = _searched(group.first)
    fixes = [
        Fix("use non-reentrant checkpointing",
            code="y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)\n"
            'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})'),
        Fix("or, where every step has the same graph",
            code="model = DistributedDataParallel(model, static_graph=True)"),
    ]  # fmt: skip
    if searched:
        fixes.append(Fix("and do not search for unused parameters where all are used",
                         code="model = DistributedDataParallel(model, find_unused_parameters=False)"))  # fmt: skip
    return Clause(
        f"DDP received the gradient of {names} twice in one backward pass", fixes, _table(parameters)
    )


def _describe_graph(diagnosis: Diagnosis, group: Group) -> Clause:
    parameters = find_parameters(group.first)
    names = f": {describe_parameters(parameters)}" if parameters else ""
    forwards = next(
        (facts.forwards for facts in group.first.view.wrappers if facts.forwards is not None), None
    )
    step = f" in step {forwards}" if forwards else ""
    return Clause(
        f"static_graph=True, but the set of used parameters changed{step}{names}",
        (
            Fix("remove static_graph where warm-up phases or dropped layers change the graph",
                code="model = DistributedDataParallel(model, find_unused_parameters=True)"),
        ),
        {**_table(parameters), "step": forwards},
    )  # fmt: skip


CLAUSES: dict[str, Describe] = {
    "DDP004": _describe_graph,
    "DDP003": _describe_twice,
    "DDP001": _describe_unused,
    "DDP006": _describe_frozen,
    "DDP002": _describe_unused_somewhere,
}
