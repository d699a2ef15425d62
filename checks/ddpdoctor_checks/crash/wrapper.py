"""DDP: errors of the wrapper that end a job, with the parameters that they are about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.job import WrappedParameter
from ddpdoctor.judge import Finding, Fix, check, check_also
from ddpdoctor_checks.crash.diagnosis import Diagnosis, Group
from ddpdoctor_checks.crash.failures import Failure
from ddpdoctor_checks.crash.telling import JOB, Clause, tell
from ddpdoctor_checks.ddp import unused
from ddpdoctor_checks.wording import count_of, find_minority, fold_values, join_words, name_set

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
            Fix(f"freeze or remove {join_words(idle)} before the wrap: no forward calls it",
                code=freeze + "model = DistributedDataParallel(model)")
        )  # fmt: skip
    if partial or not idle:
        fixes.append(
            Fix("let what these parameters give reach the loss on every rank, if only with weight zero",
                code="loss = loss + 0.0 * sum(p.sum() for p in model.parameters() if p.requires_grad)")
        )  # fmt: skip
    if not searched:
        fixes.append(
            Fix("or keep them and let DDP search in every step (it costs time)",
                code="model = DistributedDataParallel(model, find_unused_parameters=True)")
        )  # fmt: skip
    return fixes


def _searched(failure: Failure) -> bool:
    return any(facts.find_unused_parameters for facts in failure.view.wrappers)


def _describe_unused(diagnosis: Diagnosis, group: Group) -> Clause:
    parameters = find_parameters(group.first)
    names = describe_parameters(parameters) or "some parameters"
    count = f"{count_of(len(parameters), 'parameter')} got" if parameters else "parameters got"
    return Clause(
        f"{count} no gradient in the step before: {names}",
        _unused_fixes(parameters, partial=False, searched=_searched(group.first)),
        _table(parameters),
    )


@check_also(unused.find_parameters_unused, id="crash.parameters_used", family="crash", needs=(), commands=JOB)
def find_unused(evidence: Evidence) -> Iterable[Finding]:
    """DDP stopped because parameters got no gradient, on every rank."""
    yield from tell(evidence, "DDP001", _describe_unused)


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
        f"parameters got no gradient on some ranks only: {join_words(told, few=3)}{others}",
        _unused_fixes(parameters, partial=True, searched=_searched(group.first)),
        {
            **_table(parameters),
            "by_rank": [{"ranks": str(RankSet(who)), "names": list(key)} for key, who in sets.items()],
        },
    )


@check_also(
    unused.find_parameters_unused_somewhere, id="crash.parameters_used_alike", family="crash", needs=(),
    commands=JOB,
)  # fmt: skip
def find_unused_somewhere(evidence: Evidence) -> Iterable[Finding]:
    """DDP stopped on some ranks because parameters got no gradient there; the others waited for them."""
    yield from tell(evidence, "DDP002", _describe_unused_somewhere)


def _describe_twice(diagnosis: Diagnosis, group: Group) -> Clause:
    parameters = find_parameters(group.first)
    names = describe_parameters(parameters) or "a parameter"
    searched = _searched(group.first)
    fixes = [
        Fix("let checkpointing not be reentrant",
            code="y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)\n"
            'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})'),
        Fix("or, where every step has the same graph",
            code="model = DistributedDataParallel(model, static_graph=True)"),
    ]  # fmt: skip
    if searched:
        fixes.append(Fix("and do not search for unused parameters where all are used",
                         code="model = DistributedDataParallel(model, find_unused_parameters=False)"))  # fmt: skip
    return Clause(f"DDP got the gradient of {names} twice in one backward", fixes, _table(parameters))


@check(
    "DDP003",
    name="parameter-ready-twice",
    title="A parameter's gradient came twice in one backward",
    severity="error",
    family="crash",
    needs=(),
    since="0.1.0",
    id="crash.parameter_ready_once",
    commands=JOB,
)
def find_ready_twice(evidence: Evidence) -> Iterable[Finding]:
    """DDP stopped because a parameter was marked ready twice in one backward.

    What it looks for:
        "Expected to mark a variable ready only once", with the parameter that DDP names by index, its name and owner.

    Why it matters:
        DDP reduces each gradient once. Reentrant checkpointing runs parts of the backward again, and a weight that
        two modules share is used in both.

    How it decides:
        By DDP's text; the name comes from the wrapper's own list, whatever TORCH_DISTRIBUTED_DEBUG says.

    Known false alarms:
        None known.

    Fix:
        ``use_reentrant=False``, or ``static_graph=True`` where the graph never changes.

    References:
        https://docs.pytorch.org/docs/stable/checkpoint.html
        https://github.com/huggingface/accelerate/issues/389
    """
    yield from tell(evidence, "DDP003", _describe_twice)


def _describe_graph(diagnosis: Diagnosis, group: Group) -> Clause:
    parameters = find_parameters(group.first)
    names = f": {describe_parameters(parameters)}" if parameters else ""
    forwards = next(
        (facts.forwards for facts in group.first.view.wrappers if facts.forwards is not None), None
    )
    step = f" in step {forwards}" if forwards else ""
    return Clause(
        f"static_graph=True, but the set of parameters in use changed{step}{names}",
        (
            Fix("drop static_graph where warm-up phases or dropped layers change the graph",
                code="model = DistributedDataParallel(model, find_unused_parameters=True)"),
        ),
        {**_table(parameters), "step": forwards},
    )  # fmt: skip


@check(
    "DDP004",
    name="static-graph-violated",
    title="The graph changes although static_graph=True",
    severity="error",
    family="crash",
    needs=(),
    since="0.1.0",
    id="crash.static_graph",
    commands=JOB,
)
def find_graph_changed(evidence: Evidence) -> Iterable[Finding]:
    """DDP was promised a graph that never changes, and it changed.

    What it looks for:
        "Your training graph has changed in this iteration", and "Expected to have finished reduction" with the word
        that static_graph is set; the parameters and the step where they are known.

    Why it matters:
        DDP learns the graph in the first step and does not look again; afterwards it waits for gradients that never
        come.

    How it decides:
        By DDP's text.

    Known false alarms:
        None known.

    Fix:
        Drop ``static_graph``, or make every step use the same parameters.

    References:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from tell(evidence, "DDP004", _describe_graph)


def _describe_model(diagnosis: Diagnosis, group: Group) -> Clause:
    counts: dict[int, str | None] = {}
    shapes: dict[int, str] = {}
    first: WrappedParameter | None = None
    for failure in group.failures:
        groups = failure.groups
        for rank, own in (("rank", "own"), ("other", "others")):
            if groups.get(rank, "").isdigit() and groups.get(own, "").isdigit():
                counts[int(groups[rank])] = f"{int(groups[own]):,} parameters"
        if failure.rank is not None and "what" in groups and "own" in groups:
            shapes[failure.rank] = groups["own"]
            first = first or next(iter(find_parameters(failure)), None)
    ranks, seen = group.ranks, ""
    if counts:
        folded = fold_values(counts)
        ranks = find_minority(folded) or ranks
        seen = join_words(f"{each.value} on {name_set(each.who)}" for each in folded)
    elif shapes:
        folded = fold_values(dict(shapes))
        name = first.name if first is not None else "a parameter"
        sizes = join_words(f"{each.value} on {name_set(each.who)}" for each in folded)
        what = group.first.groups["what"]
        seen = f"the {what} of {name} are {sizes} and others on rank 0"
    zero = any(value == "0 parameters" for value in counts.values())
    fixes = [
        Fix("build the model from one configuration that every rank reads alike (vocabulary, checkpoint, adapters)",
            code="config = [make_config() if rank == 0 else None]\ndist.broadcast_object_list(config, src=0)"),
        Fix("compare what the ranks built, before the wrap",
            code="print(rank, [(n, tuple(p.shape)) for n, p in model.named_parameters()])"),
    ]  # fmt: skip
    if zero:
        fixes.insert(
            0,
            Fix("0 parameters often mean that this rank failed before it could answer: read its own output"),
        )
    return Clause(
        f"the ranks built different models: {seen or group.first.words}",
        fixes,
        {
            "parameter": first.name if first is not None else None,
            "counts": {str(rank): text for rank, text in list(counts.items())[:64]},
            "shapes": {str(rank): text for rank, text in list(shapes.items())[:64]},
        },
        ranks=ranks,
    )


@check(
    "DDP009",
    name="model-differs",
    title="Ranks built models of other parameters or shapes",
    severity="error",
    family="crash",
    needs=(),
    since="0.1.0",
    id="crash.models_alike",
    commands=JOB,
)
def find_model_differs(evidence: Evidence) -> Iterable[Finding]:
    """The ranks built different models, and DDP refused to wrap them.

    What it looks for:
        "DDP expects same model across all ranks" with the numbers of parameters, and "params[0] in this process with
        sizes … appears not to match" with the first parameter that differs.

    Why it matters:
        A vocabulary, a checkpoint or an adapter was there on one rank and not on another. DDP tells an index, not
        a name.

    How it decides:
        By DDP's texts of all ranks. The ranks in the minority are named; with two ranks it cannot be told which is
        right.

    Known false alarms:
        "0 params" can mean that the peer failed before it could answer.

    Fix:
        Build from one configuration, read or broadcast once.

    References:
        https://github.com/pytorch/pytorch/issues/32426
    """
    yield from tell(evidence, "DDP009", _describe_model)


def _describe_in_place(diagnosis: Diagnosis, group: Group) -> Clause:
    groups = group.first.groups
    version = group.first.view.process.torch if group.first.view.process is not None else None
    buffers = [name for facts in group.first.view.wrappers for name in facts.buffers]
    known = f" (its buffers: {join_words(buffers, few=3)})" if buffers else ""
    return Clause(
        f"autograd lost a tensor {groups.get('tensor', '')} that DDP overwrote: it broadcasts buffers in place before "
        f"each forward{known}",
        (
            Fix("make one forward of both inputs",
                code="both = model(torch.cat([real, fake]))\nreal_out, fake_out = both.chunk(2)"),
            Fix("or do not broadcast buffers in each forward",
                code="model = DistributedDataParallel(model, broadcast_buffers=False)"),
            Fix("or synchronise the statistics in the forward itself",
                code="model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"),
            Fix(f"or take a newer torch than {version or 'this one'}: 2.13 does not fail here"),
        ),
        {"tensor": groups.get("tensor"), "buffers": buffers[:50], "torch": version},
        confidence="medium",
    )  # fmt: skip


@check(
    "DDP010",
    name="buffer-modified-in-place",
    title="The broadcast of buffers broke autograd",
    severity="error",
    family="crash",
    needs=(),
    since="0.1.0",
    id="crash.buffers",
    commands=JOB,
)
def find_buffer_modified(evidence: Evidence) -> Iterable[Finding]:
    """Two forwards before one backward: DDP overwrote a buffer that autograd still needed.

    What it looks for:
        "one of the variables needed for gradient computation has been modified by an inplace operation" in a process
        whose model is wrapped in DDP and has buffers, such as those of BatchNorm.

    Why it matters:
        The same code works without DDP, so people look for an in-place operation of their own. GANs and siamese
        networks meet it.

    How it decides:
        By the text together with the wrapper: without a wrapper, without buffers, with broadcast_buffers=False, or on
        torch 2.13 and newer, which was seen not to fail, the same text is an ordinary error (ERR001).

    Known false alarms:
        An in-place operation of the user's own in a wrapped model with BatchNorm; the confidence is medium for it.

    Fix:
        One forward of both inputs, ``broadcast_buffers=False`` or SyncBatchNorm.

    References:
        https://github.com/pytorch/pytorch/issues/22095
    """
    yield from tell(evidence, "DDP010", _describe_in_place)


def _describe_attribute(diagnosis: Diagnosis, group: Group) -> Clause:
    name = group.first.groups.get("attribute", "x")
    return Clause(
        f"the wrapper was asked for {name!r}, which the model has",
        (
            Fix("ask the model inside it", code=f"model.module.{name}"),
            Fix(
                "but call the wrapper itself in training: a forward through .module reduces no gradients (DDP005)"
            ),
        ),
        {"attribute": name},
    )


@check(
    "DDP014",
    name="attribute-on-wrapper",
    title="An attribute of the model was asked of the wrapper",
    severity="error",
    family="crash",
    needs=(),
    since="0.1.0",
    id="crash.wrapper_attributes",
    commands=JOB,
)
def find_attribute(evidence: Evidence) -> Iterable[Finding]:
    """A method or an attribute of the model was asked of the DDP wrapper, which does not have it.

    What it looks for:
        "'DistributedDataParallel' object has no attribute", with the user's line.

    Why it matters:
        The code worked on one GPU. It comes up at the first evaluation or save, after hours.

    How it decides:
        By the text of the AttributeError.

    Known false alarms:
        An attribute that the model lacks too says the same.

    Fix:
        ``model.module.x``, for attributes and evaluation; not for the training forward.

    References:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from tell(evidence, "DDP014", _describe_attribute)


def _describe_device_ids(diagnosis: Diagnosis, group: Group) -> Clause:
    groups = group.first.groups
    on = groups.get("devices", "").strip(" .")
    ids = groups.get("ids")
    what = (
        f"device_ids={ids} with parameters on {on}"
        if ids and on
        else (on and f"parameters on {on}") or group.first.words
    )
    return Clause(
        f"DDP was given {what}",
        (
            Fix("move the model to the rank's GPU first", code="model = model.to(local_rank)\n"
                "model = DistributedDataParallel(model, device_ids=[local_rank])"),
            Fix("on the CPU, or where the model is spread over devices, give no device_ids",
                code="model = DistributedDataParallel(model)"),
            Fix("do not load with device_map under DDP: it spreads the model over all GPUs"),
        ),
        {"device_ids": ids, "devices": on or None},
    )  # fmt: skip


@check(
    "DDP016",
    name="device-ids-invalid",
    title="device_ids with parameters on the CPU or on several devices",
    severity="error",
    family="crash",
    needs=(),
    since="0.1.0",
    id="crash.device_ids",
    commands=JOB,
)
def find_device_ids(evidence: Evidence) -> Iterable[Finding]:
    """The model was not where device_ids says, or lies on several devices.

    What it looks for:
        DDP's refusal of ``device_ids`` with a model on the CPU, on several GPUs, or with more than one id.

    Why it matters:
        The model was wrapped before it was moved, or ``device_map="auto"`` spread it.

    How it decides:
        By the text; it names the devices.

    Known false alarms:
        None known.

    Fix:
        ``.to(local_rank)`` before the wrap, or no ``device_ids`` at all.

    References:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from tell(evidence, "DDP016", _describe_device_ids)


def _describe_nothing(diagnosis: Diagnosis, group: Group) -> Clause:
    return Clause(
        "a module was wrapped in DDP none of whose parameters is trained",
        (
            Fix("do not wrap it (a frozen teacher, a discriminator that is only asked)",
                code="if any(p.requires_grad for p in model.parameters()):\n"
                "    model = DistributedDataParallel(model)"),
            Fix("or see what froze everything (adapters, a loop over requires_grad)",
                code="print([n for n, p in model.named_parameters() if p.requires_grad])"),
        ),
    )  # fmt: skip


@check(
    "DDP017",
    name="nothing-trainable",
    title="The wrapped module has no trainable parameter",
    severity="error",
    family="crash",
    needs=(),
    since="0.1.0",
    id="crash.trainable",
    commands=JOB,
)
def find_nothing_trainable(evidence: Evidence) -> Iterable[Finding]:
    """A module without a trainable parameter was wrapped in DDP.

    What it looks for:
        "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient".

    Why it matters:
        Either the module needs no wrapper, or something froze all of the model without anybody noticing.

    How it decides:
        By the text, with the user's line.

    Known false alarms:
        None known.

    Fix:
        Do not wrap it, or leave something trainable.

    References:
        https://github.com/pytorch/pytorch/issues/25552
    """
    yield from tell(evidence, "DDP017", _describe_nothing)
