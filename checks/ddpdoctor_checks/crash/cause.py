"""How a job ended: the one row for all codes that the judgement on its processes can settle."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import CannotLook, Finding, diagnosis
from ddpdoctor_checks.crash import (
    collectives,
    device_errors,
    devices,
    environment,
    errors,
    fabrics,
    files,
    network,
    signals,
    sizes,
    wrapper,
    wrapping,
)
from ddpdoctor_checks.crash.telling import JOB, Describe, require_job, tell

CLAUSES: dict[str, Describe] = {
    code: describe
    for module in (
        errors, signals, device_errors, wrapper, wrapping, collectives, devices, fabrics, network, environment, sizes,
        files,
    )
    for code, describe in module.CLAUSES.items()
}  # fmt: skip
"""Code -> words, fixes and details, in the order in which reports show them."""


@diagnosis("crash.cause", codes=tuple(CLAUSES), family="crash", needs=(), commands=JOB)
def find_cause(evidence: Evidence) -> Iterable[Finding]:
    """Some process failed first, and ended the job; others failed on their own account later."""
    judged = require_job(evidence)
    yield from tell(judged, CLAUSES)
    if judged.cause is None and judged.reason is not None:
        raise CannotLook(f"it cannot be told who failed first: {judged.reason}")
    unseen = evidence.absent.get("processes")
    if unseen is not None and unseen.applicable and not evidence.processes:
        raise CannotLook(unseen.reason)
