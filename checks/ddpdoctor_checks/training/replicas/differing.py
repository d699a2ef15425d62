"""DDP and NUM: replicas that differ, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import CannotLook, Finding, NotApplicable, diagnosis
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.wording import name_set
from ddpdoctor_checks.job.blame.judging import diagnose, has_failed
from ddpdoctor_checks.training.replicas.apart import Divergence
from ddpdoctor_checks.training.replicas.divergence import judge_replicas
from ddpdoctor_checks.training.replicas.divergence_words import tell_divergence

UNUSED = ("DDP001", "DDP002")
UNREDUCED = (*UNUSED, "DDP006")
"""Errors of DistributedDataParallel that say that it did not reduce all gradients of the step before."""


@diagnosis(
    "training.replicas",
    codes=("DDP005", "DDP006", "NUM001", "NUM006", "DDP008", "DDP001", "DDP002", "DDP015", "COL013"),
    family="training",
    needs=TRAINING,
    required=False,
    commands=JOB,
)
def find_differing(evidence: Evidence) -> Iterable[Finding]:
    """Parameters of one model differ over ranks; in a job that failed of something else, that stands beside it."""
    if not any(node.steps for node in evidence.training):
        raise NotApplicable("no optimizer step was seen on several ranks")
    failed = has_failed(evidence)
    divergences = judge_replicas(evidence)
    for divergence in divergences:
        if failed and (divergence.code in UNUSED or _is_seen_at_end(divergence, evidence)):
            continue
        doubtful = divergence.confidence == "low" or divergence.slight
        found = tell_divergence(divergence, "info" if divergence.advice else "warning" if doubtful else None)
        yield replace(found, role="advice" if failed else "cause")
    unsure = next((divergence for divergence in divergences if divergence.unsure), None)
    if unsure is not None:
        who, name = name_set(unsure.ranks), unsure.replica.name
        raise CannotLook(
            f"{who} each train a replica of {name} that started equal on all of them, and no gradient is reduced: no "
            "wrapper, sampler or collective shows whether they are meant to train one model",
            decides=True,
        )


def _is_seen_at_end(divergence: Divergence, evidence: Evidence) -> bool:
    """Whether parameters differ only in what a failed job left: a last step that nothing reduced explains that too."""
    cause = diagnose(evidence).cause
    unreduced = divergence.gradients is None or (cause is not None and cause.code in UNREDUCED)
    return divergence.first is not None and divergence.first.final and unreduced
