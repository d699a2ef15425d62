"""NUM003 and NUM004: one rank's numbers that spoil the others'."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import choose_form, find_odd, format_number, join_words, name_set
from ddpdoctor_checks.job.blame.judging import diagnose
from ddpdoctor_checks.training.spoilers import Origin, Scales, find_origin, find_scales

_NOT_FINITE = re.compile(r"\b(nan|inf)\b|non-?finite|not finite|infinit|isfinite", re.IGNORECASE)
_FEW = 8
"""Samples that a sentence names."""


@check("NUM003", family="training", needs=TRAINING, id="training.finite", required=False, commands=JOB)
def find_nonfinite(evidence: Evidence) -> Iterable[Finding]:
    """The loss or the gradient of one rank is NaN or Inf before that of any other, and no loss is finite again."""
    if not any(count.checked for node in evidence.training for count in node.numerics.counts) and not any(
        node.numerics.losses for node in evidence.training
    ):
        raise NotApplicable("no readable loss was seen")
    origin = find_origin(evidence)
    if origin is not None:
        found = _tell_everywhere(origin) if origin.everywhere else _tell_origin(origin)
        yield replace(found, decisive=True) if _ended_the_job(evidence) else found


def _ended_the_job(evidence: Evidence) -> bool:
    """Whether the rank that failed first complains of numbers that are not finite, which came to it from elsewhere."""
    cause = diagnose(evidence).cause
    return (
        cause is not None and cause.code == "ERR001" and _NOT_FINITE.search(cause.first.message) is not None
    )


def _tell_origin(origin: Origin) -> Finding:
    look, line = origin.look, user_line(origin.look.frames)
    many = len(origin.ranks)
    what = "gradient" if look.what == "gradient" else choose_form(many, "loss", "losses")
    own = f", though {choose_form(many, 'its loss is', 'their losses are')} finite" * (what == "gradient")
    if origin.spread:
        then = (
            f"{'the losses' if what == 'gradient' else 'those'} of {name_set(origin.spread)} since backward "
            f"pass {origin.first_after}: the all-reduce of the gradients spread it."
        )
    elif origin.finite:
        then = f"those of {name_set(origin.finite)} stayed finite."
    else:
        then = "those of the other ranks are not known."
    verb = choose_form(many, "is", "are") if what != "gradient" else "is"
    since = "at" if origin.passing else "since"
    return Finding(
        message=f"The {what} of {name_set(origin.ranks)} {verb} {look.value} {since} step {look.step}"
        f"{_say_batch(origin)}{own}; {then}",
        ranks=origin.ranks,
        victims=origin.spread,
        where=in_line(line, origin.ranks, "noticed"),
        evidence=tuple(_list_losses(origin)),
        fix=_GRADIENT_FIXES if what == "gradient" else _LOSS_FIXES,
        details=_detail(origin),
        confidence="high"
        if origin.aligned and not origin.passing and (origin.spread or origin.finite)
        else "medium",
    )


_LOSS_FIXES = (
    Fix(
        "inspect the samples of that batch, and keep non-finite values out of the data",
        code="assert torch.isfinite(x).all() and torch.isfinite(y).all()",
    ),
    Fix(
        "to skip such batches, make the decision collectively (all-reduce a flag)",
        code=(
            "bad = (~torch.isfinite(loss.detach())).float()\ndist.all_reduce(bad)\nif bad > 0:\n    "
            "continue   # before the backward pass: all ranks, or none"
        ),
    ),
)
_GRADIENT_FIXES = (
    Fix(
        "let autograd report which function produces it, with that batch on that rank",
        code="with torch.autograd.detect_anomaly():\n    loss = criterion(model(x), y)\n    loss.backward()",
    ),
    Fix(
        "functions whose slope is infinite at zero (sqrt, norms, powers, log) need a small epsilon inside",
        code="norm = (x.square().sum(-1) + 1e-8).sqrt()   # not x.square().sum(-1).sqrt() + 1e-8",
    ),
)


_SAMPLED = (
    "; or from the gradient of one rank in a step before, which was not sampled: of steps this short one in up to "
    "16 is (with --watch-level deep all are)"
)


def _tell_everywhere(origin: Origin) -> Finding:
    look = origin.look
    what = "gradients" if look.what == "gradient" else "losses"
    source = (
        "it arises in the backward pass of each, though the losses are finite."
        if what == "gradients"
        else (
            "it comes from what they have in common, the "
            f"parameters{'' if look.backward > 1 else ' or the data'}{_SAMPLED if origin.sampled else ''}."
        )
    )
    return Finding(
        message=f"The {what} of {name_set(origin.ranks)} are {look.value} since step {look.step}, on all at once: "
        f"{source}",
        ranks=origin.ranks,
        where=in_line(user_line(look.frames), origin.ranks, "noticed"),
        evidence=tuple(_list_losses(origin)),
        fix=(
            Fix(
                "let autograd report which function produces it, around the steps before",
                code=f"with torch.autograd.set_detect_anomaly({max(0, look.step - 2)} < step < {look.step + 1}):\n"
                "    loss = criterion(model(x), y)\n    loss.backward()",
            ),
            Fix(
                "lower the learning rate, warm it up, clip gradients",
                code="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)",
            ),
        ),
        details=_detail(origin),
        severity="warning",
        confidence="medium",
    )


def _say_batch(origin: Origin) -> str:
    look = origin.look
    if not look.epoch:
        return ""
    what = "batch" if look.samples else "backward"
    source = f" of the loader at {look.loader}" if look.loader else ""
    return f", at {what} {look.index} of epoch {look.epoch}{source}"


def _list_losses(origin: Origin) -> list[EvidenceItem]:
    look = origin.look
    before = (
        (f", and finite at backward pass {look.backward - 1}")
        if look.backward > 1
        else ", the first of the job"
    )
    of = f" of {look.parameter}" if look.parameter else ""
    items = [
        EvidenceItem(look.what, f"{look.value}{of} at backward pass {look.backward}{before}", origin.ranks)
    ]
    if look.samples and len(origin.ranks) == 1:
        more = " …" if len(look.samples) > _FEW else ""
        told = ", ".join(map(str, look.samples[:_FEW]))
        items.append(EvidenceItem("samples", f"indices of the batch: {told}{more}", origin.ranks))
    if origin.spread:
        items.append(
            EvidenceItem("loss", f"not finite since backward pass {origin.first_after}", origin.spread)
        )
    if not origin.aligned:
        items.append(
            EvidenceItem("backwards", "not all ranks ran, or reported, the same number of backward passes")
        )
    return items


def _detail(origin: Origin) -> dict[str, object]:
    look = origin.look
    return {
        "value": look.value,
        "what": look.what,
        "parameter": look.parameter or None,
        "step": look.step,
        "backward": look.backward,
        "loader": look.loader or None,
        "epoch": look.epoch or None,
        "index": look.index or None,
        "samples": list(look.samples),
    }


_REDUCE_FIRST = Fix(
    "reduce the gradients before scaler.unscale_ looks for inf and NaN: then all ranks find the same",
    code="scaler.scale(loss).backward()\n"
    "for p in model.parameters():\n    dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)\n"
    "scaler.unscale_(optimizer)",
)


@check("NUM004", family="training", needs=TRAINING, id="training.scales", required=False, commands=JOB)
def find_scalers(evidence: Evidence) -> Iterable[Finding]:
    """The scale of a GradScaler is another on some ranks of one model, and stays so."""
    if not any(node.numerics.scales for node in evidence.training):
        raise NotApplicable("no GradScaler was seen")
    for scales in find_scales(evidence):
        yield _tell_scales(scales)


def _tell_scales(scales: Scales) -> Finding:
    odd = find_odd(list(scales.values.values()))
    line = user_line(scales.frames)
    steps = f"step {scales.first}" if scales.first > 1 else "the first step"
    return Finding(
        message=(
            f"The scale of GradScaler differs across {name_set(scales.ranks)} from {steps} on: "
            f"{_join_scales(scales.values)}; "
            + (
                "each rank looks for inf and NaN in its own gradients, and skips its step alone."
                if scales.by_hand
                else "each rank divides the common gradient by its own scale."
            )
        ),
        ranks=odd,
        victims=scales.ranks.minus(odd),
        where=in_line(line, scales.ranks, "noticed"),
        evidence=(
            EvidenceItem("scales", f"at step {scales.first}: {_join_scales(scales.values)}"),
            EvidenceItem("scales", f"at step {scales.last}: {_join_scales(scales.last_values)}"),
        ),
        fix=(
            *([_REDUCE_FIRST] if scales.by_hand else []),
            Fix("call scaler.step and scaler.update on every rank in every step, with the same arguments"),
            Fix(
                "load the scaler's state on all ranks, not on one",
                code='scaler.load_state_dict(torch.load(path, map_location="cpu")["scaler"])   # on every rank',
            ),
        ),
        details={
            "first_step": scales.first,
            "scales": [{"scale": value, "ranks": str(ranks)} for value, ranks in scales.values.items()],
        },
    )  # fmt: skip


def _join_scales(values: dict[float, RankSet]) -> str:
    return join_words(f"{format_number(value)} on {name_set(ranks)}" for value, ranks in values.items())
