"""How a job ended: the one row for all codes that the judgement on its processes can settle."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import CannotLook, Finding, diagnosis
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.job.ends import (
    backend_errors,
    checkpoint_errors,
    collective_errors,
    fabrics,
    gpu_errors,
    gradient_errors,
    launch_errors,
    network_errors,
    process_errors,
    signals,
    world_sizes,
    wrap_errors,
)
from ddpdoctor_checks.job.ends.clauses import Describe, require_job
from ddpdoctor_checks.job.ends.findings import tell

CLAUSES: dict[str, Describe] = {
    code: describe
    for module in (
        process_errors,
        signals,
        gpu_errors,
        gradient_errors,
        wrap_errors,
        collective_errors,
        backend_errors,
        fabrics,
        network_errors,
        launch_errors,
        world_sizes,
        checkpoint_errors,
    )
    for code, describe in module.CLAUSES.items()
}
"""Code -> words, fixes and details, in the order in which reports show them."""


@diagnosis("crash.cause", codes=tuple(CLAUSES), family="crash", needs=(), commands=JOB)
def find_cause(evidence: Evidence) -> Iterable[Finding]:
    """Some process failed first, and ended the job; others failed on their own account later."""
    judged = require_job(evidence)
    yield from tell(judged, CLAUSES)
    if judged.cause is None and judged.reason is not None:
        raise CannotLook(f"the first failure cannot be determined: {judged.reason}")
    unseen = evidence.absent.get("processes")
    if unseen is not None and unseen.applicable and not evidence.processes:
        raise CannotLook(unseen.reason)
