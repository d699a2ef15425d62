"""The ranks of a job that was watched, and which of them ended well."""

from __future__ import annotations

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor.judge import NotApplicable
from ddpdoctor_checks.job.blame.conditions import ABRT


def find_ranks(evidence: Evidence) -> list[ProcessRecord]:
    """Return the ranks of a job's last attempt that were watched, one process for each, in order.

    Raises:
        NotApplicable: there is none, or several processes have the number of one rank.
    """
    ranks = [each for each in evidence.processes if each.is_rank and each.rank is not None]
    last = max((each.attempt for each in ranks), default=0)
    ranks = [each for each in ranks if each.attempt == last and each.milestones]
    if not ranks:
        raise NotApplicable("no rank was watched")
    if len({each.rank for each in ranks}) < len(ranks):
        raise NotApplicable("several jobs ran at the same time")
    return sorted(ranks, key=lambda each: each.rank or 0)


def ended_well(process: ProcessRecord, evidence: Evidence) -> bool:
    """Whether a process ended by itself and without an error."""
    aborted = process.signal == ABRT and process.clean_end  # torch on CPU does so now and then (ERR010)
    if process.exit_code or (process.signal is not None and not aborted):
        return False
    if not process.clean_end and process.exit_code is None:
        return False
    return not any(
        each.kind == "uncaught" and (each.node, each.pid) == (process.node, process.pid)
        for each in evidence.exceptions
    )


def job_ended_well(evidence: Evidence) -> bool:
    """Whether the launched command is known to have ended with status 0, and not because somebody asked it to."""
    return bool(evidence.job) and all(
        each.exit_code == 0 and each.signal is None and each.interrupted is None and not each.stopped
        for each in evidence.job
    )


def ranks_of(processes: list[ProcessRecord]) -> RankSet:
    """Return the numbers of some ranks."""
    return RankSet(each.rank for each in processes if each.rank is not None)
