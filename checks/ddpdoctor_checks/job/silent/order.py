"""COL004 of a live job: the calls that its ranks wrote down, compared by line."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, NotApplicable, check
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.job.calls.last import describe_call
from ddpdoctor_checks.job.calls.matching import Matching
from ddpdoctor_checks.job.calls.sequences import Essences, is_ring, read_groups
from ddpdoctor_checks.job.calls.swaps import find_swap
from ddpdoctor_checks.job.calls.votes import Difference
from ddpdoctor_checks.job.recorder.difference_words import tell
from ddpdoctor_checks.job.recorder.own_ends import diagnose_ends, failed_itself


@check("COL004", family="silent", needs=("calls",), id="silent.order", required=False, commands=JOB)
def find_order_in_job(evidence: Evidence) -> Iterable[Finding]:
    """Ranks of a watched job made two calls in another order, by what each wrote down before it made them."""
    logs = [log for log in evidence.calls if is_ring(log)]
    if not logs:
        raise NotApplicable("the collectives of ranks were not compared")
    for log in logs:
        essences = Essences(log)
        groups = read_groups(log)
        found = next((swap for group in groups if (swap := find_swap(group, essences)) is not None), None)
        if found is not None:
            yield _tell(evidence, Matching(log, essences, tuple(groups), (found,)), found)
            return
    lost = next((text for log in logs for text in log.lost), None)
    if lost is not None:
        raise CannotLook(lost)
    world = max(log.world or 0 for log in logs)
    if any(len(log.ranks) < (log.world or world) for log in logs):
        raise CannotLook("collectives were compared among the ranks of each node only, not across nodes")


def _tell(evidence: Evidence, matching: Matching, found: Difference) -> Finding:
    told = tell(matching, found)
    follows = failed_itself(diagnose_ends(evidence))
    blamed = set(found.culprits)
    where, seen = [], []
    for side in found.sides:
        call = matching.log.calls[side.call or 0]
        if side.site is None:
            continue
        role = "culprit" if not blamed or blamed.issuperset(side.ranks) else "victim"
        where.append(in_frame(side.site, side.ranks, role))
        place = f"{side.site.file}:{side.site.line}"
        seen.append(
            EvidenceItem(
                "calls", f"collective #{found.number}: {describe_call(call)} from {place}", side.ranks
            )
        )
    return Finding(
        message=told.message,
        ranks=told.ranks,
        victims=told.victims if told.ranks else RankSet(),
        where=tuple(sorted(where, key=lambda place: place.role != "culprit")),
        evidence=tuple(seen),
        fix=told.fix,
        details=told.details,
        confidence=told.confidence,
        role="consequence" if follows else "cause",
    )
