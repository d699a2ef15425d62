"""The judgement on recorded calls, made once for all checks."""

from __future__ import annotations

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import once
from ddpdoctor_checks.job.calls.matching import Matching, match_calls
from ddpdoctor_checks.job.calls.sequences import is_ring
from ddpdoctor_checks.job.calls.votes import Difference

WAITED = frozenset({"COL002", "COL003", "COL005", "COL008", "NET011"})
"""Codes of jobs in which ranks waited for others, as far as texts tell: recorded calls tell more."""
TOLD = frozenset({"mismatch", "apart", "skipped", "extra", "swapped", "missing"})
"""Kinds of differences that name what is wrong."""


@once
def match_evidence(evidence: Evidence) -> list[Matching]:
    """Return each log of calls matched over ranks."""
    return [match_calls(log) for log in evidence.calls if not is_ring(log)]


def first_difference(evidence: Evidence) -> tuple[Matching, Difference] | None:
    """Return the difference that explains the others; None where the ranks were in step."""
    return next(((each, each.differences[0]) for each in match_evidence(evidence) if each.differences), None)


def knows_better(evidence: Evidence, code: str) -> bool:
    """Whether recorded calls name what texts of ranks that waited only hint at.

    Args:
        evidence: of a job.
        code: of what the texts say.
    """
    found = first_difference(evidence) if evidence.calls and not evidence.standstills else None
    return found is not None and (found[1].kind in TOLD or code == "COL005")
