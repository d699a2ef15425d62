"""What a code says of a job that failed: the end of its sentence, what to do, who is at fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import EvidenceItem, Fix, NotApplicable, Where
from ddpdoctor_checks.common.wording import join_words
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group, interrupted_by_user
from ddpdoctor_checks.job.blame.failures import Failure
from ddpdoctor_checks.job.blame.judging import diagnose

KINDS = ("processes", "exceptions", "crashes", "texts", "job")
"""Kinds of evidence that speak of a job's end; a check of this family looks where one of them is there."""
MOST_NAMED = 4
"""Hosts that a sentence names."""


@dataclass(slots=True)
class Clause:
    """What a code adds to a finding: the end of the sentence, what to do, details."""

    what: str
    """Follows ``Rank 2 failed first:``."""
    fix: Sequence[Fix] = ()
    details: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    """``what`` is the whole message."""
    nobody: bool = False
    """No rank was started: nobody failed, and nobody suffered."""
    ranks: RankSet | None = None
    """Culprits where they are others than those who said it."""
    severity: str | None = None
    seen: Sequence[EvidenceItem] = ()
    confidence: str | None = None
    """Where it is other than that of the failure itself."""
    victims: RankSet | None = None
    """Ranks that are shown not to be the cause, where that is not all that only lost a peer or were told to end."""
    places: Sequence[Where] = ()
    """The true line and its callers, where the line that the failure named is only where it was noticed."""


Describe = Callable[[Diagnosis, Group], Clause]
"""Makes the clause of a code for a group of processes that failed alike."""


def require_job(evidence: Evidence) -> Diagnosis:
    """Return the judgement on the job.

    Raises:
        NotApplicable: no job was watched or none of its remains were given, or the user ended it.
    """
    if not any(getattr(evidence, kind) for kind in KINDS):
        raise NotApplicable("no job was watched")
    if evidence.standstills and not any(getattr(evidence, kind) for kind in KINDS if kind != "processes"):
        raise NotApplicable("the job was inspected while it ran")
    diagnosis = diagnose(evidence)
    if interrupted_by_user(diagnosis):
        if diagnosis.job is not None and diagnosis.job.stopped:
            raise NotApplicable("ddpdoctor ended the hung job before any rank crashed")
        raise NotApplicable("the job was stopped from outside before any rank failed")
    return diagnosis


def name_hosts(diagnosis: Diagnosis, failures: Iterable[Failure]) -> str:
    """Return the hosts of some processes for a sentence."""
    return join_words(dict.fromkeys(diagnosis.host(each.view) for each in failures), few=MOST_NAMED)
