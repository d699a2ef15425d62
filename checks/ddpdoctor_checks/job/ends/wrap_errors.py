"""DDP: models that cannot be wrapped, and wrappers that are used wrongly."""

from __future__ import annotations

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.job import WrappedParameter
from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.wording import capitalise, find_minority, fold_values, join_words, name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.ends.clauses import Clause, Describe
from ddpdoctor_checks.job.ends.gradient_errors import find_parameters


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
    ranks, seen, usual = group.ranks, "", RankSet()
    if counts:
        folded = fold_values(counts)
        odd = find_minority(folded)
        ranks, usual = odd or ranks, RankSet(counts).minus(odd) if odd else usual
        seen = join_words(f"{each.value} on {name_set(each.who)}" for each in folded)
    elif shapes:
        folded = fold_values(dict(shapes))
        name = first.name if first is not None else "a parameter"
        sizes = join_words(f"{each.value} on {name_set(each.who)}" for each in folded)
        what = group.first.groups["what"]
        seen = f"the {what} of {name} are {sizes} and others on rank 0"
    zero = any(value == "0 parameters" for value in counts.values())
    fixes = [
        Fix((
            "build the model from one configuration that every rank reads identically (vocabulary, "
            "checkpoint, adapters)"
        ),
            code="config = [make_config() if rank == 0 else None]\ndist.broadcast_object_list(config, src=0)"),
        Fix("compare what the ranks built, before the model is wrapped",
            code="print(rank, [(n, tuple(p.shape)) for n, p in model.named_parameters()])"),
    ]  # fmt: skip
    if zero:
        fixes.insert(
            0,
            Fix("0 parameters often mean that this rank failed before it could answer: read its own output"),
        )
    what = f"the ranks built different models: {seen or group.first.words}"
    if ranks != group.ranks:  # a majority built the same
        line = group.first.line
        where = f" at {line.file}:{line.line}" if line is not None else ""
        who = name_set(ranks)
        what = (
            f"{capitalise(who)} built a different model than the other ranks: {seen}; DDP() refused it on "
            f"{name_set(group.ranks)}{where}."
        )
    return Clause(
        what,
        fixes,
        {
            "parameter": first.name if first is not None else None,
            "counts": {str(rank): text for rank, text in list(counts.items())[:64]},
            "shapes": {str(rank): text for rank, text in list(shapes.items())[:64]},
        },
        whole=ranks != group.ranks,
        ranks=ranks,
        victims=usual,
    )


def _describe_in_place(diagnosis: Diagnosis, group: Group) -> Clause:
    groups = group.first.groups
    version = group.first.view.process.torch if group.first.view.process is not None else None
    buffers = [name for facts in group.first.view.wrappers for name in facts.buffers]
    known = f" (its buffers: {join_words(buffers, few=3)})" if buffers else ""
    return Clause(
        f"autograd lost a tensor {groups.get('tensor', '')} that DDP overwrote: it broadcasts buffers in "
        f"place before each forward pass{known}",
        (
            Fix("run both inputs in one forward pass",
                code="both = model(torch.cat([real, fake]))\nreal_out, fake_out = both.chunk(2)"),
            Fix("or do not broadcast buffers in each forward pass",
                code="model = DistributedDataParallel(model, broadcast_buffers=False)"),
            Fix("or synchronize the statistics in the forward pass itself",
                code="model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"),
            Fix(f"or use a newer torch than {version or 'this one'}: 2.13 does not fail here"),
        ),
        {"tensor": groups.get("tensor"), "buffers": buffers[:50], "torch": version},
        confidence="medium",
    )  # fmt: skip


def _describe_attribute(diagnosis: Diagnosis, group: Group) -> Clause:
    name = group.first.groups.get("attribute", "x")
    return Clause(
        f"the wrapper was asked for {name!r}, which the model has",
        (
            Fix("access it on the wrapped model", code=f"model.module.{name}"),
            Fix(
                "but call the wrapper itself in training: a forward pass through .module reduces no "
                "gradients (DDP005)"
            ),
        ),
        {"attribute": name},
    )


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
            Fix("on the CPU, or where the model is spread over devices, omit device_ids",
                code="model = DistributedDataParallel(model)"),
            Fix("do not load with device_map under DDP: it spreads the model over all GPUs"),
        ),
        {"device_ids": ids, "devices": on or None},
    )  # fmt: skip


def _describe_nothing(diagnosis: Diagnosis, group: Group) -> Clause:
    return Clause(
        "a module without trainable parameters was wrapped in DDP",
        (
            Fix("do not wrap it (a frozen teacher, a discriminator that is only evaluated)",
                code="if any(p.requires_grad for p in model.parameters()):\n"
                "    model = DistributedDataParallel(model)"),
            Fix("or find what froze everything (adapters, a loop over requires_grad)",
                code="print([n for n, p in model.named_parameters() if p.requires_grad])"),
        ),
    )  # fmt: skip


CLAUSES: dict[str, Describe] = {
    "DDP014": _describe_attribute,
    "DDP010": _describe_in_place,
    "DDP016": _describe_device_ids,
    "DDP009": _describe_model,
    "DDP017": _describe_nothing,
}
