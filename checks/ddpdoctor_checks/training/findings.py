"""DDP and NUM: replicas that parted, one check for each code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, NotApplicable, check
from ddpdoctor_checks.crash.judging import has_failed
from ddpdoctor_checks.crash.telling import JOB
from ddpdoctor_checks.training.parting import judge_replicas
from ddpdoctor_checks.training.telling import tell_parting

NEEDS = ("training",)


def _tell(evidence: Evidence, code: str) -> Iterable[Finding]:
    """Yield what parted replicas of one code show; in a job that failed of something else, beside that."""
    if not any(node.steps for node in evidence.training):
        raise NotApplicable("no step of an optimizer was seen on several ranks")
    failed = has_failed(evidence)
    for parting in judge_replicas(evidence):
        if parting.code != code or (failed and code in ("DDP001", "DDP002")):
            continue
        doubtful = parting.confidence == "low" or parting.slight
        found = tell_parting(parting, "info" if parting.advice else "warning" if doubtful else None)
        yield replace(found, role="advice" if failed else "cause")


@check("DDP001", family="training", needs=NEEDS, id="training.unused", required=False, commands=JOB)
def find_unused(evidence: Evidence) -> Iterable[Finding]:
    """Parameters got no gradient on any rank, and what shares their bucket was not reduced."""
    yield from _tell(evidence, "DDP001")


@check("DDP002", family="training", needs=NEEDS, id="training.unused_somewhere", required=False, commands=JOB)
def find_unused_somewhere(evidence: Evidence) -> Iterable[Finding]:
    """Parameters got no gradient on some ranks, and nothing complained."""
    yield from _tell(evidence, "DDP002")


@check("DDP005", family="training", needs=NEEDS, id="training.wrapper_used", required=False, commands=JOB)
def find_bypassed(evidence: Evidence) -> Iterable[Finding]:
    """The model inside DistributedDataParallel is trained without a forward of the wrapper."""
    yield from _tell(evidence, "DDP005")


@check("DDP006", family="training", needs=NEEDS, id="training.parameters_known", required=False, commands=JOB)
def find_changed(evidence: Evidence) -> Iterable[Finding]:
    """Parameters are trained that DistributedDataParallel did not know when it wrapped the model."""
    yield from _tell(evidence, "DDP006")


@check(
    "DDP008", family="training", needs=NEEDS, id="training.synced_before_step", required=False, commands=JOB
)
def find_unsynced(evidence: Evidence) -> Iterable[Finding]:
    """The last forward before a step of the optimizer was made under no_sync, so its gradients were not reduced."""
    yield from _tell(evidence, "DDP008")


@check("DDP015", family="training", needs=NEEDS, id="training.model_wrapped", required=False, commands=JOB)
def find_unwrapped(evidence: Evidence) -> Iterable[Finding]:
    """Several ranks step an optimizer on the same model, each with gradients of its own."""
    yield from _tell(evidence, "DDP015")


@check("NUM001", family="training", needs=NEEDS, id="training.replicas", required=False, commands=JOB)
def find_parted(evidence: Evidence) -> Iterable[Finding]:
    """Parameters of one model differ over ranks, and no narrower cause was seen."""
    yield from _tell(evidence, "NUM001")


@check("NUM006", family="training", needs=NEEDS, id="training.rates", required=False, commands=JOB)
def find_rates(evidence: Evidence) -> Iterable[Finding]:
    """Ranks step one model with different learning rates, settings or states of the optimizer."""
    yield from _tell(evidence, "NUM006")
