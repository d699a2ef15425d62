"""What was read in the source, added to what was seen in the job: the line of a live finding gets its test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence.job import CrashRecord, ExceptionRecord
from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.judge.finding import EvidenceItem, Finding

COLLECTIVES = "COL"
"""Family of codes that are one defect in different stages: what waits there may be seen as another code of it."""
SIDE = "side"
"""Detail of a finding on collectives that do not match; ``unknown`` where its check cannot say which ranks differ."""
MADE = "made"
"""Detail of a finding whose lines only show the defect, or that names the line which causes it: ``elsewhere`` where no
rank can be seen at that line of the source, so that what was read of it comes first."""


def join_source(live: Sequence[Finding], read: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings of a job with what the source says of them; what was only read is left out.

    A finding is joined with one that was read where they have a line in common, or where it has no line at all and
    there is only one of its code. One whose cause is `MADE` elsewhere is also joined with the only one of its code that
    names one line. What has no place, as a plugin may find, says nothing of a line.
    """
    placed = [each for each in read if each.where]
    return tuple(_join(each, placed) for each in live)


def _join(finding: Finding, read: Sequence[Finding]) -> Finding:
    if finding.state != "active":
        return finding
    lines = {(place.file, place.line) for place in finding.where}
    same = [each for each in read if each.code == finding.code]
    kin = [each for each in read if each.code[:3] == COLLECTIVES == finding.code[:3]]
    matching = [each for each in (*same, *kin) if lines & {(place.file, place.line) for place in each.where}]
    elsewhere = finding.details.get(MADE) == "elsewhere"
    if not matching and len(same) == 1 and (not lines or (elsewhere and len(same[0].where) == 1)):
        matching = same
    if not matching:
        return finding
    source = matching[0]
    elsewhere = elsewhere or source.details.get(MADE) == "elsewhere"
    roles = ("condition",) if lines else ("culprit", "noticed", "condition", "caller")
    added = tuple(p for p in source.where if p.role in roles and (p.file, p.line) not in lines)
    place = source.where[0]
    item = EvidenceItem("source", source.message, source=(place.file, place.line))
    if elsewhere and source.code == finding.code and (place.file, place.line) not in lines:
        shown = (replace(each, role="noticed") if each.role == "culprit" else each for each in finding.where)
        made = replace(place, ranks=finding.ranks)
        return replace(finding, where=(made, *shown, *added), evidence=(*finding.evidence, item))
    return replace(finding, where=(*finding.where, *added), evidence=(*finding.evidence, item))


def find_foreseen(exceptions: Sequence[ExceptionRecord], read: Sequence[Finding]) -> Finding | None:
    """Return what was read of the line at which a job failed whose failure nothing else explains; None without one.

    A collective that some ranks never reach fails on the others with a message on the connection, which says nothing of
    the cause. What depends on other conditions does not count.
    """
    for source in read:
        if source.code[:3] != COLLECTIVES or source.severity != "error":
            continue
        lines = {(p.file, p.line) for p in source.where if p.role in ("culprit", "noticed")}
        there = [
            each
            for each in exceptions
            if each.rank is not None and any((frame.file, frame.line) in lines for frame in each.frames)
        ]
        if not there:
            continue
        ranks = RankSet(each.rank for each in there if each.rank is not None)
        words = f"{there[0].type}: {there[0].message}".partition("\n")[0]
        item = EvidenceItem("exception", f"failed there with {words}", ranks)
        return replace(source, victims=ranks, evidence=(*source.evidence, item), confidence="medium")
    return None


def explain_mismatch(
    finding: Finding, stacks: Sequence[ExceptionRecord | CrashRecord], read: Sequence[Finding]
) -> Finding:
    """Return what was read of a collective that only some ranks reach, where a mismatch of collectives ended the job.

    gloo and NCCL notice a mismatch by sizes alone, on a rank that may be any. A rank that was inside of a call which
    the source keeps from others shows what did not match. A mismatch whose side is known stays as it is.

    Args:
        finding: of the job.
        stacks: of its ranks as they ended.
        read: in the source.
    """
    if finding.details.get(SIDE) != "unknown":
        return finding
    for source in read:
        if source.code[:3] != COLLECTIVES or source.severity not in ("error", "warning") or not source.where:
            continue
        if all(place.role != "condition" for place in source.where):
            continue
        line = (source.where[0].file, source.where[0].line)
        inside = RankSet(
            each.rank
            for each in stacks
            if each.rank is not None and any((frame.file, frame.line) == line for frame in each.frames)
        )
        others = RankSet(each.rank for each in stacks if each.rank is not None).minus(inside)
        if inside and others:
            read_there = (replace(place, ranks=inside) for place in source.where)
            return replace(
                source,
                message=f"{source.message.rstrip('.')}. There the collectives of the ranks no longer match.",
                ranks=inside,
                victims=others,
                where=(*read_there, *(p for p in finding.where if (p.file, p.line) != line)),
                evidence=(*source.evidence, *finding.evidence),
                severity=finding.severity,
                confidence="high",
                role=finding.role,
                decisive=finding.decisive,
            )
    return finding
