"""DDP006: an optimizer whose steps change nothing, for FSDP has put other parameters into the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook
from ddpdoctor.evidence.training.merging import join_optimizers
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, name_set
from ddpdoctor_checks.training.replicas.whole_parts import SHARDING
from ddpdoctor_checks.training.wrappers import find_layout

FEWEST = 3
"""Steps at which its parameters have to be the same."""


@check(
    "DDP006", family="training", needs=TRAINING, id="training.stale_optimizer", required=False, commands=JOB
)
def find_stale(evidence: Evidence) -> Iterable[Finding]:
    """The only optimizer of a sharded model holds parameters that no model has, and that never get a gradient."""
    if not any(axis.strategy in SHARDING for axis in find_layout(evidence).axes):
        raise NotApplicable("no model was seen that FSDP shards")
    optimizers = list(join_optimizers(evidence.training))
    trained = any(count.backwards for node in evidence.training for count in node.numerics.counts)
    if len(optimizers) == 1 and trained and _is_stale(optimizers[0][1]):
        yield _tell_stale(*optimizers[0])


def _is_stale(looks: Sequence[StepLook]) -> bool:
    """Whether no parameter of an optimizer is known in a model, has a gradient at its first step, or ever changes."""
    start = next((look for look in looks if look.step == 1), None)
    if start is None or not start.values or len(looks) < FEWEST:
        return False
    everyone = RankSet().union(*(share.ranks for share in start.values))
    named = [each for each in start.tensors if each.kind == "parameter"]
    return (
        bool(named)
        and all(not each.model and not each.gradients and each.missing == everyone for each in named)
        and len({look.values for look in looks}) == 1
        and len({look.gradients for look in looks if not look.final}) == 1
    )


def _tell_stale(setup: OptimizerSetup, looks: Sequence[StepLook]) -> Finding:
    line = user_line(setup.frames)
    ranks = RankSet().union(*(share.ranks for share in looks[0].values))
    kind = setup.kind.rpartition(".")[2]
    return Finding(
        message=(
            f"{capitalise(name_set(ranks))} step {kind}{tell_line(line)}, whose "
            f"{count_of(setup.parameters, 'parameter')} are none of the model's and never get a gradient, as where "
            "FSDP puts others into the model after the optimizer was created. Nothing is trained."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem(
                "parameters",
                f"those of the optimizer: no gradient at step 1, the same values at {count_of(len(looks), 'look')} "
                f"from step {looks[0].step} to {looks[-1].step}",
                ranks,
            ),
        ),
        fix=(
            Fix(
                "shard the model first, and create the optimizer from its parameters then",
                code="fully_shard(model)\noptimizer = torch.optim.AdamW(model.parameters())",
            ),
        ),
        details={"optimizer": kind, "parameters": setup.parameters},
        confidence="high",
    )
