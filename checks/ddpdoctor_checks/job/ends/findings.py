"""From the judgement on a job to findings: the sentence, the places, what was seen, who the victims are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.judge import EvidenceItem, Finding, Fix, Where
from ddpdoctor_checks.common.frames import MOST_PLACES, user_frames
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import count_of, name_set
from ddpdoctor_checks.job.blame.conditions import LAUNCHERS
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.doubts import list_doubts, lower
from ddpdoctor_checks.job.blame.failures import Failure, Level, describe_exception
from ddpdoctor_checks.job.blame.restarts import advise_restarts, explain_restarts
from ddpdoctor_checks.job.blame.said import QUIET
from ddpdoctor_checks.job.calls.first_difference import WAITED, knows_better
from ddpdoctor_checks.job.ends.aftereffects import describe_sequence
from ddpdoctor_checks.job.ends.clauses import Clause, Describe
from ddpdoctor_checks.job.ends.rerun import rerun
from ddpdoctor_checks.job.hangs.progress import judge_look
from ddpdoctor_checks.job.silent.unwaited import left_unsent

MOST_LATER = 4
"""Later failures that are findings of their own; more are counted in the details of the first."""


SECOND = 1.0
"""What times of logs that hold whole seconds cannot tell apart."""


MOST_ATTEMPTS = 5
"""Other attempts whose failures are named."""


_SHORT = (
    "Connection closed by peer", "Connection reset by peer", "Connection was likely closed", "Broken pipe",
    "Connection refused", "Socket closed", "closed by remote peer", "remote process exited", "ncclRemoteError",
    "Timed out waiting", "collective operation timeout", "timed out", "timeout", "Socket Timeout", "aborted",
)  # fmt: skip
"""The telling part of what victims say, the most telling first."""


TIMEOUT, EARLY = "COL005", "COL008"


NETWORK = ("NET011", "NET014")
"""Codes of the network that a look at connections settles."""


UNHEARD = (TIMEOUT, "NET011", "NET015")
"""Codes of those who gave up, or heard nothing any more, which a look explains."""


BETWEEN = frozenset({"COL003", "DDP009", "ENV002", "ENV003"})
"""Codes of what does not match between ranks: who complains of it is no less at fault than who does not."""


_CALLED = {"agent": "the agent", "its parent": "its parent"}
"""How the line on victims calls those of `LAUNCHERS`."""


_LINKS = {"cause": "raised from", "member": "holds"}
"""How an exception belongs to the one before it in its chain."""


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
            if told or unsent or (cause.code == TIMEOUT and seen is not None and seen.ranks):
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
    "ENV005": "ranks use different versions of NCCL", "ENV008": "/dev/shm is too small for NCCL",
    "ENV009": "the limit on open files was reached", "ENV010": "NCCL could not lock memory for RDMA",
    "ERR002": "host memory ran out", "NET015": "a node is gone",
    "ERR003": "a process received a bus error", "ERR004": "a process crashed in native code",
    "ERR005": "a process was killed", "ERR007": "a CUDA kernel failed earlier", "ERR008": "GPU memory ran out",
    "NET002": "a host name does not resolve", "NET003": "a loopback address was advertised",
    "ENV013": "an NCCL setting cannot be applied",
    "NET004": "NCCL finds no usable network interface", "NET005": "another node's port cannot be reached",
    "NET011": "the connection to a peer went silent", "NET016": "the RDMA path does not carry data",
}  # fmt: skip
"""What a line settles, in words; the line itself follows."""


def choose_words(group: Group, describe: Describe) -> Describe:
    """Return what describes a group: where a line of NCCL's or of the kernel's decided, its code and the line."""
    entry = group.first.entry
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
        clause.what if clause.whole else f"{_subject(diagnosis, group)}: {clause.what.removesuffix('.')}."
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
        nodes=hosts if _is_named(diagnosis, group) else (),
        where=_places(diagnosis, group, clause, ranks, cause),
        evidence=tuple(
            replace(item, ranks=None) if clause.nobody else item
            for item in _once(_seen(diagnosis, group, clause, cause))
        ),
        fix=(*clause.fix, *([advise_restarts()] if cause and explain_restarts(diagnosis) else [])),
        details={**_details(diagnosis, group, cause), **clause.details},
        confidence=lower(clause.confidence or group.first.sure)
        if doubts
        else clause.confidence or group.first.sure,
        role="cause" if cause else "consequence",
        severity=severity,
        decisive=cause,
    )


def _is_deadly(diagnosis: Diagnosis, group: Group) -> bool:
    """Whether the job died of it: then it is an error, whatever its code is where a check only warns before."""
    ended_well = diagnosis.job is not None and diagnosis.job.exit_code == 0
    entry = group.first.entry
    survived = entry is not None and entry.id in SURVIVED and group.first.exception is None
    return not (ended_well or survived or group.code in AT_EXIT or diagnosis.recovered)


def _is_named(diagnosis: Diagnosis, group: Group) -> bool:
    """Whether it says something where it happened: there are several nodes, or the line that decided names its host."""
    first = group.first
    return diagnosis.context.nodes > 1 or bool(
        first.entry is not None and first.exception is None and first.view.host
    )


def _list_innocent(diagnosis: Diagnosis) -> Iterator[int]:
    """Yield the ranks that are shown not to be the cause: they lost a peer, or were told to end, after it had failed.

    That a rank failed later than another one shows nothing by itself.
    """
    for each in diagnosis.victims:
        if each.rank is not None and each.level in (Level.COMPLAINT, Level.ENDED, Level.AT_EXIT):
            yield each.rank


def _subject(diagnosis: Diagnosis, group: Group) -> str:
    """Return ``Rank 2 on node-b failed first, 0.38 s before anyone else, at data/vocab.py:57 in encode``."""
    place = _place(group)
    ranks = group.ranks
    many = len(ranks) > 1
    first = group.first
    hosts = tuple(dict.fromkeys(diagnosis.host(each.view) for each in group.failures))
    where = f" on {hosts[0]}" if _is_named(diagnosis, group) and len(hosts) == 1 else ""
    if not ranks:
        who = {"launcher": "the launcher"}.get(first.view.role, _name_process(first))
        where = "" if who.endswith(first.view.host) and first.view.host else where
    else:
        who = name_set(ranks)
    if many and ranks == diagnosis.world:
        who = "both ranks" if len(ranks) == 2 else f"all {len(ranks):,} ranks"
    who = who[0].upper() + who[1:] + where
    if group is not diagnosis.cause:
        lag = _lag(diagnosis, group)
        return (
            f"{who} failed too" + (f", {lag} later" if lag else "") + ("," if lag and place else "") + place
        )
    lead = lead_of(diagnosis)
    if many:
        told = f" (rank {first.rank} first)" if first.rank is not None and first.at is not None else ""
        return f"{who} failed in the same way{place}{told}" + (
            f", {lead} before any other rank" if lead else ""
        )
    if lead:
        return f"{who} failed first, {lead} before any other rank" + (f",{place}" if place else "")
    alone = len(diagnosis.world) == 1 or not (diagnosis.victims or diagnosis.others)
    return f"{who} failed{place}" if alone else f"{who} failed first{place}"


def _name_process(failure: Failure) -> str:
    """Return how a process is called of which no rank is known; a line of the kernel is its node's."""
    view = failure.view
    if view.pid is not None and view.host:
        return f"process {view.pid} on {view.host}"
    return f"node {view.host}" if view.host and view.role == "other" else "a process of the job"


def lead_of(diagnosis: Diagnosis) -> str:
    """Return how long before all others the cause was, e.g. ``0.38 s``; empty where clocks cannot tell."""
    group = diagnosis.cause
    if group is None or group.first.at is None:
        return ""
    rest = [*diagnosis.victims, *(each for other in diagnosis.others for each in other.failures)]
    known = [each for each in rest if each.at is not None]
    if not known:
        return ""
    following = min(known, key=lambda each: each.at or 0.0)
    return _tell_gap(diagnosis, group.first, following)


def _tell_gap(diagnosis: Diagnosis, first: Failure, later: Failure) -> str:
    """Return how much later something happened; empty where clocks cannot tell, or where it was not later."""
    if first.at is None or later.at is None:
        return ""
    coarse = first.coarse or later.coarse
    unsure = diagnosis.clock.tolerance(first.view.node, later.view.node) + (SECOND if coarse else 0.0)
    gap = later.at - first.at
    return format_gap(gap, whole=coarse) if gap > unsure else ""


def format_gap(seconds: float, *, whole: bool = False) -> str:
    """Return a short time: ``0.4 ms``, ``0.38 s``, ``12 s``, ``31 min``; ``2 s`` where only whole ones are known."""
    if whole and seconds < 10:
        return f"{seconds:.0f} s"
    if seconds < 0.01:
        return f"{seconds * 1e3:.2g} ms"
    if seconds < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _lag(diagnosis: Diagnosis, group: Group) -> str:
    cause = diagnosis.cause
    if cause is None:
        return ""
    return _tell_gap(diagnosis, cause.first, group.first)


def _place(group: Group) -> str:
    line, note = group.first.line, group.first.note
    at = (
        f" at {line.file}:{line.line}" + (f" in {line.function}" if line.function != "<module>" else "")
        if line
        else ""
    )
    return f"{at} ({note})" if note else at


def _places(
    diagnosis: Diagnosis, group: Group, clause: Clause, ranks: RankSet, cause: bool
) -> tuple[Where, ...]:
    """Culprit's innermost line first, then its callers, other lines of the group, then where victims stood."""
    hosts = {diagnosis.host(each.view) for each in group.failures}
    host = next(iter(hosts)) if diagnosis.context.nodes > 1 and len(hosts) == 1 else None
    said_by_victims = clause.ranks is not None and group.first.rank not in ranks
    role = "victim" if said_by_victims else "noticed" if clause.places else "culprit"
    own = ranks if role == "culprit" else group.ranks
    shown = user_frames(group.first.frames)[: 1 if clause.places else MOST_PLACES]
    places = list(clause.places)
    told = {(place.file, place.line) for place in places}
    places += [
        in_frame(frame, own, role if not n else "caller", host if not n else None)
        for n, frame in enumerate(shown)
        if (frame.file, frame.line) not in told
    ]
    other: dict[tuple[str, int], list[Failure]] = {}
    for each in group.failures:
        line = each.line
        if line is not None and shown and (line.file, line.line) != (shown[0].file, shown[0].line):
            other.setdefault((line.file, line.line), []).append(each)
    for members in list(other.values())[:3]:
        line = members[0].line
        if line is not None and (line.file, line.line) not in told:
            members_ranks = RankSet(each.rank for each in members if each.rank is not None)
            places.append(in_frame(line, members_ranks, role))
    named = {(place.file, place.line): place.ranks for place in places}
    victims = (
        _victim_places(diagnosis) if cause and clause.victims is None and group.code not in BETWEEN else []
    )
    return (
        *places,
        *(each for each in victims if each.ranks.minus(named.get((each.file, each.line), RankSet()))),
    )


def _victim_places(diagnosis: Diagnosis) -> list[Where]:
    found: dict[tuple[str, int], tuple[Frame, list[int]]] = {}
    for each in diagnosis.victims:
        line = each.line
        if line is not None and each.rank is not None:
            found.setdefault((line.file, line.line), (line, []))[1].append(each.rank)
    largest = sorted(found.values(), key=lambda item: -len(item[1]))[:3]
    return [in_frame(frame, RankSet(ranks), "victim") for frame, ranks in largest]


def _once(items: Iterable[EvidenceItem]) -> list[EvidenceItem]:
    """Return each sentence once, with the place in a log that any of its items has."""
    kept: dict[tuple[str, tuple[int, ...]], EvidenceItem] = {}
    for item in items:
        key = (item.text, tuple(item.ranks or ()))
        known = kept.setdefault(key, item)
        if known.source is None and item.source is not None:
            kept[key] = replace(known, source=item.source)
    return list(kept.values())


def _seen(diagnosis: Diagnosis, group: Group, clause: Clause, cause: bool) -> Iterator[EvidenceItem]:
    first = group.first
    kind = "exception" if first.exception is not None else "text" if first.entry is not None else "exit"
    words = first.outer or first.words
    words = f"{words} ({first.note})" if first.note else words
    source = first.exception.source if first.exception is not None else None
    yield EvidenceItem(kind, words, group.ranks or None, source)
    if first.exception is not None:
        for link in first.exception.chain[:3]:
            how = _LINKS.get(link.link or "", "raised while handling")
            yield EvidenceItem(
                "exception", f"{how} {describe_exception(link.type, link.message)}", group.ranks or None
            )
    if first.before is not None:
        earlier = first.before
        gap = _tell_gap(diagnosis, earlier, first)
        where = f" at {earlier.line.file}:{earlier.line.line}" if earlier.line is not None else ""
        yield EvidenceItem(
            "exception",
            f"{f'{gap} before' if gap else 'before'}: {earlier.words} {earlier.note}{where}".replace(
                "  ", " "
            ),
            group.ranks or None,
        )
    for line in first.proof:
        yield EvidenceItem("kernel", line, group.ranks or None)
    yield from clause.seen
    if cause:
        yield from describe_victims(diagnosis)
        same = [
            attempt
            for attempt, mark in diagnosis.repeats
            if mark == dict(diagnosis.repeats)[diagnosis.attempt]
        ]
        if len(same) > 1:
            yield EvidenceItem("restart", f"the same failure in {count_of(len(same), 'attempt')}")
        others = [each for each in diagnosis.earlier if each[0] not in same]
        for attempt, other in others[-MOST_ATTEMPTS:]:
            place = other.first.line
            at = f" at {place.file}:{place.line}" if place is not None else ""
            text = f"another failure in attempt {attempt}: {other.first.words}{at}"
            yield EvidenceItem("restart", text, other.ranks or None)
        yield from explain_restarts(diagnosis)


def describe_victims(diagnosis: Diagnosis) -> Iterator[EvidenceItem]:
    """Yield one line per kind of complaint: who, what, how long after the first failure."""
    groups: dict[str, list[Failure]] = {}
    for each in diagnosis.victims:
        if each.rank is not None:
            groups.setdefault(shorten_complaint(each), []).append(each)
    start = diagnosis.cause.first if diagnosis.cause is not None else None
    for words, members in list(groups.items())[:6]:
        ranks = RankSet(each.rank for each in members if each.rank is not None)
        gaps = [
            each.at - start.at for each in members if start and start.at is not None and each.at is not None
        ]
        near = start is not None and all(
            not diagnosis.clock.tolerance(start.view.node, m.view.node) and not (m.coarse or start.coarse)
            for m in members
        )
        yield EvidenceItem("victim", f"{words}{_span(gaps) if gaps and near else ''}", ranks)


def _span(gaps: Sequence[float]) -> str:
    low, high = min(gaps), max(gaps)
    if low < 0:
        return ""
    if format_gap(low) == format_gap(high):
        return f" {format_gap(low)} later"
    return f" {format_gap(low)} to {format_gap(high)} later"


def shorten_complaint(failure: Failure) -> str:
    """Return ``"Connection closed by peer"``, or how it was ended, for the line on victims."""
    if failure.level == Level.ENDED:
        sender = (failure.view.process.signal_sender or "") if failure.view.process is not None else ""
        who = next((name for name in LAUNCHERS if sender.startswith(name)), None)
        return f"{failure.words} from {_CALLED[who]}" if who is not None else failure.words
    return next(
        (f'"{part}"' for part in _SHORT if part in failure.words or part in failure.message), failure.words
    )


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
