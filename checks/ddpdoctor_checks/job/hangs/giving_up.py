"""Stalls that ended because NCCL gave the collective up, which looks like progress from outside.

gloo raises in the rank that waits. NCCL aborts its communicators: the device is released, the rank comes back from
where it waited for it, and may begin another call before its process is taken down.
"""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor_checks.job.calls.sequences import is_ring, read_groups

GAVE_UP = frozenset({"nccl-timed-out", "nccl-aborted", "nccl-takes-process-down", "nccl-remote-error"})
"""Entries of what torch's watchdog and NCCL print when they end collectives that do not end by themselves
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""
MOST_FURTHER = 1
"""Calls that a rank may begin once the device is released; one that trains on begins more."""


def restore_given_up(look: Standstill, evidence: Evidence) -> Standstill:
    """Return a look that was withdrawn as it was before, where the ranks were only released by NCCL giving up.

    That is so where the job failed, NCCL or torch's watchdog said that they ended its collectives, and no rank began
    more than one further call after the look.

    Args:
        look: the one that counts.
        evidence: of the job.
    """
    if look.stage != "withdrawn" or not _failed(evidence) or _went_on(look, evidence):
        return look
    if not any(text.entry in GAVE_UP for text in evidence.texts):
        return look
    return replace(look, stage="confirmed" if look.still_s >= look.hang_timeout_s else "suspected")


def _failed(evidence: Evidence) -> bool:
    return any(job.exit_code or job.signal for job in evidence.job)


def _went_on(look: Standstill, evidence: Evidence) -> bool:
    """Whether a rank began further calls than a release explains; also where that is not known of one."""
    counts = {stand.rank: stand.counts for stand in look.stands if stand.alive}
    further = dict.fromkeys(counts, 0)
    seen: set[int] = set()
    for group in (group for log in evidence.calls if is_ring(log) for group in read_groups(log)):
        for rank in group.lines.keys() & counts.keys():
            seen.add(rank)
            further[rank] += max(0, group.lines[rank].last - counts[rank].get(group.name, 0))
    return not seen >= counts.keys() or max(further.values(), default=0) > MOST_FURTHER
