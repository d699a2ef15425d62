"""COL006 of a job that ended well: ranks created groups of one name and of different members.

torch names a group by the number of groups that its rank created before (``_process_group_name``), and its members
meet under that name.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import EvidenceItem, Finding, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, join_words, name_set
from ddpdoctor_checks.job.calls.sequences import is_ring
from ddpdoctor_checks.job.hangs.creations import FIXES
from ddpdoctor_checks.job.silent.well_ended import job_ended_well

LISTED = 4
"""Groups that a sentence names."""


@check("COL006", family="silent", needs=("calls",), id="silent.groups", required=False, commands=JOB)
def find_names_shared(evidence: Evidence) -> Iterable[Finding]:
    """Each rank creates its own group alone, or ranks create theirs in another order; the job ended well by luck."""
    logs = [log for log in evidence.calls if is_ring(log)]
    if not logs or not job_ended_well(evidence):
        raise NotApplicable("no job that ended well and whose ranks were compared")
    for created in (log.created for log in logs if log.created):
        ranks = RankSet().union(*(each.ranks for each in created))
        line = user_line(created[0].frames)
        told = join_words(
            f"{name_set(each.ranks)} {choose_form(len(each.ranks), 'creates', 'create')} the group of ranks "
            f"{each.members}"
            for each in created[:LISTED]
        )
        yield Finding(
            message=f"{capitalise(told)} as group {created[0].name}{tell_line(line)}: ranks that create other groups, "
            "or in another order, may be connected to the wrong ranks, and hang or get the tensors of another group.",
            ranks=ranks,
            where=in_line(line, ranks, "culprit"),
            evidence=tuple(
                EvidenceItem("groups", f"new_group of ranks {each.members} is group {each.name}", each.ranks)
                for each in created[:LISTED]
            ),
            fix=FIXES,
            details={
                "group": created[0].name,
                "members": [[str(each.members), str(each.ranks)] for each in created[:64]],
            },
            severity="warning",
            confidence="high",
        )
        return
