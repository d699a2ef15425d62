"""NUM001: tensor-parallel ranks do not keep equal what all of them hold whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook
from ddpdoctor.facts import strategies
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, join_words, name_set
from ddpdoctor_checks.training.data.model_peers import find_apart
from ddpdoctor_checks.training.replicas.whole_parts import LISTED, list_left
from ddpdoctor_checks.training.wrappers import find_layout


@check("NUM001", family="training", needs=TRAINING, id="training.replicated", required=False, commands=JOB)
def find_replicated_apart(evidence: Evidence) -> Iterable[Finding]:
    """Tensor-parallel ranks hold a parameter whole beside shards, and step it with gradients of their own."""
    axes = [
        axis
        for axis in find_layout(evidence).axes
        if axis.strategy == strategies.DTENSOR.name and axis.role == strategies.TENSOR
    ]
    if not axes:
        raise NotApplicable("no tensor-parallel ranks whose parameters are DTensors were seen")
    # Different samples give different gradients of everything: that is the cause then.
    others = {group for apart in find_apart(evidence, axes) for group in apart.groups}
    groups = [group for axis in axes for group in axis.groups if group not in others]
    for left in list_left(evidence, groups):
        yield _tell_replicated(*left)


def _tell_replicated(setup: OptimizerSetup, group: RankSet, names: Sequence[str], look: StepLook) -> Finding:
    line = user_line(setup.frames)
    told = join_words(list(names), few=LISTED)
    return Finding(
        message=(
            f"{capitalise(name_set(group))} hold {told} whole, beside shards of the other parameters, began with the "
            f"same values and step with gradients of their own{tell_line(line)}: each gradient is that of what the "
            f"rank computed itself. The values differ from step {look.step} on."
        ),
        ranks=group,
        where=in_line(line, group, "culprit"),
        evidence=(
            EvidenceItem("parameters", f"{told}: equal before step 1, with different gradients", group),
        ),
        fix=(
            Fix(
                "say where a DTensor becomes a local tensor that its gradient is a part of a sum",
                code="weights = scores.to_local(grad_placements=[Partial()])",
            ),
            Fix(
                "or sum the gradients of replicated parameters across the tensor-parallel ranks before the step",
                code='dist.all_reduce(router.weight.grad, group=mesh["tp"].get_group())',
            ),
        ),
        details={"parameters": list(names)[:LISTED], "step": look.step},
        confidence="high",
    )
