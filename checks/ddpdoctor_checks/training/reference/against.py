"""NUM009: the same global batch gives other numbers on another number of ranks."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.references import Reference
from ddpdoctor.judge import EvidenceItem, Finding, NotApplicable, check
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.training.reference.differences import (
    ORDER,
    PART,
    RATE,
    SCALE,
    TENSORS,
    Difference,
    find_difference,
)
from ddpdoctor_checks.training.reference.reference_words import blames_loss, list_fixes, tell, tell_seen

LISTED = 20


@check(
    "NUM009", family="training", needs=("references",), id="training.against", required=False, commands=JOB
)
def find_reference_differs(evidence: Evidence) -> Iterable[Finding]:
    """Losses, gradients or parameters differ from those of a reference run beyond what arithmetic explains."""
    if not evidence.references:
        raise NotApplicable("no reference run (--against)")
    for reference in evidence.references:
        found = find_difference(reference)
        if found is not None:
            yield _tell(found, reference, evidence)


def _tell(found: Difference, reference: Reference, evidence: Evidence) -> Finding:
    line = _find_line(found, evidence)
    ranks = RankSet(range(reference.job_ranks))
    # More samples in a step, and larger steps for them: what a job of one rank with a smaller batch would not do.
    linear = found.cause == RATE and reference.widened > 1
    step = found.step
    return Finding(
        message=tell(found, reference, line),
        severity="info" if found.cause == ORDER or linear else None,
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=tuple(EvidenceItem(kind, text) for kind, text in tell_seen(found, reference)),
        fix=list_fixes(found, reference),
        details={
            "cause": found.cause,
            "step": step.step,
            "factor": found.factor,
            "tensors": list(found.names[:LISTED]),
            "agreeing": list(found.agreeing[:LISTED]),
            "tolerance": found.tolerance,
            "reference_ranks": reference.ranks,
        },
        confidence="medium" if found.cause in (TENSORS, ORDER) else "high",
    )


def _find_line(found: Difference, evidence: Evidence) -> Frame | None:
    """Return the line that reduces gradients, where the program does and scales them by it; else that of the step."""
    setups = [each for node in evidence.training for each in node.optimizers]
    for setup in setups:
        if setup.number == found.step.optimizer:
            scales = found.cause in (SCALE, PART) and not blames_loss(found)
            return (user_line(setup.reduced) if scales else None) or user_line(setup.frames)
    return None
