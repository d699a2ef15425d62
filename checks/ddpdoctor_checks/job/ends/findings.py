"""From the judgement on a job to findings: the sentence, the places, what was seen, who the victims are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import Finding, Fix
from ddpdoctor_checks.common.frames import user_frames
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.doubts import list_doubts, lower
from ddpdoctor_checks.job.blame.failures import DIFFERING, QUIET, Level, describe_exception
from ddpdoctor_checks.job.blame.restarts import advise_restarts, explain_restarts
from ddpdoctor_checks.job.calls.first_difference import WAITED, knows_better
from ddpdoctor_checks.job.ends.aftereffects import describe_sequence
from ddpdoctor_checks.job.ends.clauses import Clause, Describe
from ddpdoctor_checks.job.ends.launch_size import list_small_launches
from ddpdoctor_checks.job.ends.lines import BETWEEN, list_places
from ddpdoctor_checks.job.ends.rerun import rerun
from ddpdoctor_checks.job.ends.seen import keep_once, list_seen
from ddpdoctor_checks.job.ends.subjects import is_named, lead_of, name_subject
from ddpdoctor_checks.job.hangs.progress import judge_look
from ddpdoctor_checks.job.silent.unwaited import left_unsent

MOST_LATER = 4
"""Later failures that are findings of their own; more are counted in the details of the first."""
TIMEOUT, EARLY = "COL005", "COL008"
UNSET = "ENV001"
"""Code of variables that a launcher sets for each rank: one that started too few ranks set none."""
NETWORK = ("NET011", "NET014")
"""Codes of the network that a look at connections settles."""
UNHEARD = (TIMEOUT, "NET011", "NET015")
"""Codes of those who gave up, or heard nothing any more, which a look explains."""


def tell(diagnosis: Diagnosis, clauses: Mapping[str, Describe]) -> Iterator[Finding]:
    """Yield the cause of the job's end, and failures of their own that came later.

    Args:
        diagnosis: of a job.
        clauses: code -> words, fixes and details of it.
    """
    evidence, cause = diagnosis.evidence, diagnosis.cause

    def is_told(group: Group) -> bool:
        return group.code in clauses and not (group.code in WAITED and knows_better(evidence, group.code))

    if cause is not None and is_told(cause):
        seen = _find_in_look(evidence) if cause.code in UNHEARD else None
        told = seen is not None and seen.code in NETWORK and not _has_closed(diagnosis)
        if not told or cause.code not in NETWORK:
            finding = make_finding(diagnosis, cause, choose_words(cause, clauses[cause.code or ""]))
            unsent = cause.code == EARLY and _left_unsent(evidence, finding)
            small = cause.code == UNSET and any(list_small_launches(evidence))
            if small or told or unsent or (cause.code == TIMEOUT and seen is not None and seen.ranks):
                finding = replace(finding, role="consequence", decisive=False)
            yield finding
    for group in diagnosis.others[:MOST_LATER]:
        if is_told(group):
            yield make_finding(diagnosis, group, choose_words(group, clauses[group.code or ""]))


LEADS = {
    "BKD001": "NCCL finds no GPU", "BKD002": "NCCL failed", "BKD004": "the GPU index is out of range",
    "BKD005": "the GPU, the driver and this build of CUDA do not match",
    "BKD006": "two NCCL libraries conflict", "BKD007": "GPUs cannot reach each other's memory",
    "BKD009": "tensors and communicator are on different GPUs", "BKD010": "a device is faulty",
    "BKD012": "the NVLink fabric is not ready", "BKD013": "the network plugin of NCCL failed",
    "COL001": "a collective returned an incorrect result", "COL009": "a process does not respond any more",
    "COL003": "ranks issued mismatched collectives", "COL011": "a send or receive has no counterpart",
    "ENV002": "two processes use one rank", "ENV003": "ranks have different world sizes",
    "ENV004": "hosts set different values",
    "ENV005": "ranks use different versions of NCCL", "ENV008": "/dev/shm is too small for NCCL",
    "ENV009": "the limit on open files was reached", "ENV010": "NCCL could not lock memory for RDMA",
    "ERR002": "host memory ran out", "NET015": "a node is gone",
    "ERR003": "a process received a bus error", "ERR004": "a process crashed in native code",
    "ERR005": "a process was killed", "ERR007": "a CUDA kernel failed earlier", "ERR008": "GPU memory ran out",
    "NET002": "a host name does not resolve", "NET003": "an address was advertised that no other node reaches",
    "ENV013": "an NCCL setting cannot be applied",
    "NET004": "NCCL finds no usable network interface", "NET005": "another node's port cannot be reached",
    "NET006": "a part of the job never started", "NET013": "another node cannot be reached",
    "ERR009": "the job could not be started",
    "NET011": "the connection to a peer went silent", "NET016": "the RDMA path does not carry data",
}  # fmt: skip
"""What a line settles, in words; the line itself follows."""


def choose_words(group: Group, describe: Describe) -> Describe:
    """Return what describes a group: where a line of NCCL's or of the kernel's decided, its code and the line."""
    entry = group.first.entry
    if entry is not None and entry.id in DIFFERING:
        return _describe_difference
    by_line = entry is not None and (entry.templates or entry.fix) and group.first.exception is None
    return describe_line if by_line and group.code in LEADS and group.code not in OWN_WORDS else describe


OWN_WORDS = ("BKD003", "COL009")
"""Codes whose words put together what several lines say."""
NAMED = ("device", "peer", "bus", "xid", "status", "path")
"""Parts of a line that its finding keeps as details."""


def describe_line(diagnosis: Diagnosis, group: Group) -> Clause:
    """Return the words of a line that decided: what it means, and the line itself."""
    first = group.first
    fix = first.entry.fix if first.entry is not None else None
    more = Fix("enable NCCL's logs", rerun(diagnosis, environment=("NCCL_DEBUG=INFO",)))
    return Clause(
        f'{LEADS[group.code or ""]}: "{first.words}"',
        (Fix(fix),) if fix else (more,),
        {name: value for name, value in first.groups.items() if name in NAMED},
    )


DIFFERS = {
    "hosts-use-different-networks": "NCCL did not choose the same network on all hosts",
    "hosts-use-different-nccl": "The version of NCCL is not the same on all hosts",
    "hosts-set-different-values": "{variable} is not the same on all hosts",
}
"""Leads of the entries of `DIFFERING`."""


def _describe_difference(diagnosis: Diagnosis, group: Group) -> Clause:
    """Return the words of what only all hosts together show: no process said it, and none is to blame."""
    clause = describe_line(diagnosis, group)
    groups = group.first.groups
    lead = DIFFERS[group.first.entry.id if group.first.entry else ""].format_map(groups)
    return replace(clause, what=f"{lead}: {groups['what']}.", whole=True, ranks=RankSet())


def _find_in_look(evidence: Evidence) -> Finding | None:
    """Return what a look had shown of those who waited until they gave up: it says more of what is told here."""
    if not evidence.standstills:
        return None
    found = judge_look(evidence)
    return found if found is not None and found.state == "active" else None


def _has_closed(diagnosis: Diagnosis) -> bool:
    """Whether the connection of a node ended: then its processes had, and the network is not the cause."""
    return any(member.state == "closed" for member in diagnosis.evidence.members)


def _left_unsent(evidence: Evidence, early: Finding) -> bool:
    """Whether all who left early had begun something last that they did not wait for, which says more."""
    return bool(early.ranks) and not early.ranks.minus(left_unsent(evidence))


AT_EXIT = ("ERR010", "COL012")
"""Codes of jobs that had done their work."""
SURVIVED = QUIET | {"device-guessed"}
"""Entries of lines that jobs print which go on."""


def make_finding(diagnosis: Diagnosis, group: Group, describe: Describe) -> Finding:
    """Return the finding on one group of processes that failed alike."""
    cause = group is diagnosis.cause
    clause = describe(diagnosis, group)
    ranks = group.ranks if clause.ranks is None else clause.ranks
    said = RankSet() if clause.ranks is None or clause.nobody else group.ranks.minus(ranks)
    victims = clause.victims
    if victims is None and group.code in BETWEEN:
        victims = RankSet()
    elif victims is None:
        victims = RankSet(_list_innocent(diagnosis)).union(said)
    message = (
        clause.what if clause.whole else f"{name_subject(diagnosis, group)}: {clause.what.removesuffix('.')}."
    )
    severity = clause.severity or ("error" if cause and _is_deadly(diagnosis, group) else None)
    if diagnosis.recovered and severity is None:
        severity = "warning"
    if diagnosis.recovered and cause:
        message += " The launcher restarted the job, which then succeeded."
    message += describe_sequence(diagnosis, group) if cause else ""
    doubts = list_doubts(diagnosis) if cause else []
    if doubts:
        message += f" Not certain: {'; '.join(doubts)}."
    hosts = tuple(
        dict.fromkeys(diagnosis.host(f.view) for f in group.failures if f.rank is None or f.rank in ranks)
    )
    return Finding(
        code=group.code or "",
        message=message,
        ranks=ranks,
        victims=victims.minus(ranks) if cause else RankSet(),
        nodes=hosts if is_named(diagnosis, group) else (),
        where=list_places(diagnosis, group, clause, ranks, cause),
        evidence=tuple(
            replace(item, ranks=None) if clause.nobody else item
            for item in keep_once(list_seen(diagnosis, group, clause, cause))
        ),
        fix=(*clause.fix, *([advise_restarts()] if cause and explain_restarts(diagnosis) else [])),
        details={**_details(diagnosis, group, cause), **clause.details},
        confidence=lower(clause.confidence or group.first.sure)
        if doubts
        else clause.confidence or group.first.sure,
        role="cause" if cause else "consequence",
        severity=severity,
        # An abort after the script had ended comes behind an error that was seen in its steps.
        decisive=cause and group.level != Level.AT_EXIT,
    )


def _is_deadly(diagnosis: Diagnosis, group: Group) -> bool:
    """Whether the job died of it: then it is an error, whatever its code is where a check only warns before."""
    ended_well = diagnosis.job is not None and diagnosis.job.exit_code == 0
    entry = group.first.entry
    survived = entry is not None and entry.id in SURVIVED and group.first.exception is None
    return not (ended_well or survived or group.code in AT_EXIT or diagnosis.recovered)


def _list_innocent(diagnosis: Diagnosis) -> Iterator[int]:
    """Yield the ranks that are shown not to be the cause: they lost a peer, or were told to end, after it had failed.

    That a rank failed later than another one shows nothing by itself.
    """
    for each in diagnosis.victims:
        if each.rank is not None and each.level in (Level.COMPLAINT, Level.ENDED, Level.AT_EXIT):
            yield each.rank


def _details(diagnosis: Diagnosis, group: Group, cause: bool) -> dict[str, Any]:
    first = group.first
    hidden = len(first.frames) - len(user_frames(first.frames))
    details: dict[str, Any] = {
        "exception": first.type,
        "text": first.entry.id if first.entry is not None else None,
        "attempt": diagnosis.attempt,
        "frames_hidden": hidden,
    }
    if first.exception is not None and first.exception.chain:
        chain = first.exception.chain
        details["chain"] = [
            {"link": e.link, "text": describe_exception(e.type, e.message)} for e in chain[:8]
        ]
    if cause:
        details["lead"] = lead_of(diagnosis) or None
        if len(diagnosis.others) > MOST_LATER:
            details["later_failures_left_out"] = len(diagnosis.others) - MOST_LATER
    return details
