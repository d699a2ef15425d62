"""COL: what the recorded calls of all ranks show."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check, diagnosis
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.wording import join_words, name_set
from ddpdoctor_checks.job.calls.first_difference import first_difference, match_evidence
from ddpdoctor_checks.job.calls.matching import find_unexplained
from ddpdoctor_checks.job.calls.sequences import conflicting_groups, is_ring
from ddpdoctor_checks.job.recorder.difference_words import Told, tell, tell_early
from ddpdoctor_checks.job.recorder.moment import judge_moment, weaken
from ddpdoctor_checks.job.recorder.own_ends import diagnose_ends, ended_well, failed_itself

NEEDS = ("calls",)
MOST_LISTS = 4
"""Lists of members that a sentence names."""


def _judge(evidence: Evidence) -> Told | None:
    """Return what is told of the first difference.

    Raises:
        NotApplicable: no calls were recorded, or the ranks were looked at while they stood still, which tells more.
        CannotLook: only one rank's calls are known.
    """
    recorded = [log for log in evidence.calls if not is_ring(log)]
    if not recorded:
        raise NotApplicable("no collectives were recorded")
    if evidence.standstills:
        raise NotApplicable("the ranks themselves were sampled")
    if max(len(log.ranks) for log in recorded) < 2:
        raise CannotLook("the collectives of a single rank cannot be compared")
    found = first_difference(evidence)
    if found is None:
        return None
    matching, difference = found
    diagnosis = diagnose_ends(evidence)
    if diagnosis is not None and difference.kind == "missing":
        early = ended_well(diagnosis, difference.behind)
        others = ended_well(diagnosis, difference.waiting)
        if len(early) == len(difference.behind) and len(others) < len(difference.waiting):
            return tell_early(matching, difference, early)
    return weaken(tell(matching, difference), judge_moment(matching, difference, diagnosis))


# Required, unlike what else is asked of recorded calls: ranks that wait for nobody knows whom are not fine.
@diagnosis(
    "recorder.calls",
    codes=("COL005", "COL002", "COL003", "COL008", "COL004"),
    family="hangs",
    needs=NEEDS,
    commands=JOB,
)
def find_difference(evidence: Evidence) -> Iterable[Finding]:
    """The first call in which the records of ranks differ, and whose absence or shape explains what follows."""
    told = _judge(evidence)
    if told is not None:
        follows = failed_itself(diagnose_ends(evidence))
        yield Finding(
            code=told.code,
            message=told.message,
            ranks=told.ranks,
            victims=told.victims,
            where=told.where,
            evidence=told.seen,
            fix=told.fix,
            details=told.details,
            confidence=told.confidence,
            role="consequence" if follows else "cause",
            severity=told.severity,
            decisive=not follows and told.severity is None,
        )
    if first_difference(evidence) is None:
        for matching in match_evidence(evidence):
            unexplained = find_unexplained(matching)
            if unexplained is not None:
                raise CannotLook(unexplained)


@check("COL006", family="hangs", needs=NEEDS, id="recorder.groups", required=False, commands=JOB)
def find_groups_differ(evidence: Evidence) -> Iterable[Finding]:
    """Ranks know a process group of one name with other members."""
    _judge(evidence)
    follows = failed_itself(diagnose_ends(evidence))
    for matching in match_evidence(evidence):
        for name, versions in conflicting_groups(matching.log).items():
            ordered = sorted(versions.items(), key=lambda item: -len(item[1]))
            told = join_words(
                f"{name_set(who)} created it of {name_set(members)}" for members, who in ordered[:MOST_LISTS]
            )
            counts = [len(who) for _, who in ordered]
            odd = RankSet().union(*(who for _, who in ordered[1:])) if counts[0] > counts[1] else RankSet()
            yield Finding(
                message=f"Group {name} is not the same on all ranks: {told}.",
                ranks=odd,
                victims=ordered[0][1] if odd else RankSet(),
                evidence=tuple(EvidenceItem("recorder", f"members {members}", who) for members, who in ordered[:8]),
                fix=(Fix(
                    "call new_group on every rank, with the same ranks in the same order, outside of any "
                    "rank-dependent `if`"
                ),),
                details={"group": name, "members": [[str(m), str(who)] for m, who in ordered[:64]]},
                confidence="high" if odd else "medium",
                role="consequence" if follows else "cause",
                decisive=not follows,
            )  # fmt: skip
            return
