"""COL: what a look at ranks that stand still shows, one check for each code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, check
from ddpdoctor_checks.crash.failures import OWN
from ddpdoctor_checks.crash.judging import diagnose
from ddpdoctor_checks.crash.telling import JOB
from ddpdoctor_checks.hangs.beside import find_beside
from ddpdoctor_checks.hangs.creations import find_crossed
from ddpdoctor_checks.hangs.joining import find_sizes
from ddpdoctor_checks.hangs.links import find_network
from ddpdoctor_checks.hangs.loaders import explain_by_batches
from ddpdoctor_checks.hangs.reading import INIT, Reading, last_look, ranks_of, read_look
from ddpdoctor_checks.hangs.stalls import find_stall
from ddpdoctor_checks.hangs.starting import find_starting
from ddpdoctor_checks.hangs.unwatched import describe_standing, find_busy, judge_stacks
from ddpdoctor_checks.hangs.waits import find_deadlock, to_finding

NEEDS = ("standstills",)


def judge_look(evidence: Evidence) -> Finding | None:
    """Return the one finding of the look that counts.

    Raises:
        NotApplicable: there was none.
    """
    look = last_look(evidence)
    if look.stage == "brief":
        return None
    reading: Reading = read_look(look)
    if look.stage == "moving":
        return find_busy(reading)
    if not all(place.stand.watched or place.kind == "gone" for place in reading.places):
        return judge_stacks(reading)
    deadlock = find_crossed(reading) or find_deadlock(reading)
    beside = find_beside(reading, look.stage) if deadlock is None or not deadlock.proof else None
    sizes = find_sizes(reading, look.stage)
    if sizes is not None or beside is not None:
        found: Finding | None = sizes or beside
    elif deadlock is not None:
        told = dataclasses.replace(to_finding(deadlock, reading), code=deadlock.code)
        found = explain_by_batches(told, reading)
    else:
        others = {member.node: member.host for member in evidence.members}
        found = find_network(reading, look.stage, others)
        if found is None:
            stall = find_stall(reading, look.stage) or find_starting(reading, look.stage)
            found = _behind_thread(stall, evidence)
        found = _behind_failure(found, reading, evidence)
    if found is not None and look.stage == "withdrawn":
        return dataclasses.replace(found, state="withdrawn", severity="info", decisive=False)
    return found


def _behind_thread(found: Finding | None, evidence: Evidence) -> Finding | None:
    """Return a stall as what follows where a thread of the stalled rank has died: the rank may wait for it in vain."""
    if found is None or found.code != "COL009":
        return found
    dead = [each for each in evidence.exceptions if each.kind == "thread" and each.rank in found.ranks]
    if not dead:
        return found
    name = f"thread {dead[0].thread}" if dead[0].thread else "a thread"
    seen = EvidenceItem("thread", f"{name} of rank {dead[0].rank} has died of {dead[0].type}")
    return dataclasses.replace(found, role="consequence", decisive=False, evidence=(*found.evidence, seen))


def _behind_failure(found: Finding | None, reading: Reading, evidence: Evidence) -> Finding | None:
    """Return a hang without a root-cause rank as a precursor where one of its ranks then failed on its own.

    What failed says why: models of other shapes, a name that does not resolve, a port without a listener. Where
    ranks wait to meet, any failure does.
    """
    if found is None or found.code != "COL005" or reading.look.stopped or not evidence.exceptions:
        return found
    waiting = ranks_of(place for place in reading.places if place.waits)
    failed = [each for each in evidence.exceptions if each.kind == "uncaught" and each.rank in waiting]
    if not failed:
        return found
    meeting = all(
        place.call is not None and place.call.op == INIT for place in reading.places if place.kind != "gone"
    )
    cause = diagnose(evidence).cause
    own = cause is not None and cause.level in OWN
    if not own and not (meeting and reading.look.stage == "suspected"):
        return found
    seen = EvidenceItem("exception", f"rank {failed[0].rank} failed there afterwards: {failed[0].type}")
    return dataclasses.replace(found, role="consequence", decisive=False, evidence=(*found.evidence, seen))


def _tell(evidence: Evidence, code: str) -> Iterable[Finding]:
    finding = judge_look(evidence)
    if finding is not None and finding.code == code:
        yield finding


@check("COL002", family="hangs", needs=NEEDS, id="hangs.missing", required=False, commands=JOB)
def find_missing_call(evidence: Evidence) -> Iterable[Finding]:
    """Ranks wait in a call, and the others, which it needs, wait in another one."""
    yield from _tell(evidence, "COL002")


@check("COL003", family="hangs", needs=NEEDS, id="hangs.mismatch", required=False, commands=JOB)
def find_other_call(evidence: Evidence) -> Iterable[Finding]:
    """At one number of a group ranks stand in calls that do not fit."""
    yield from _tell(evidence, "COL003")


@check("COL008", family="hangs", needs=NEEDS, id="hangs.early_exit", required=False, commands=JOB)
def find_early_exit(evidence: Evidence) -> Iterable[Finding]:
    """Ranks wait for one that has left the program."""
    yield from _tell(evidence, "COL008")


@check("COL005", family="hangs", needs=NEEDS, id="hangs.symmetric", required=False, commands=JOB)
def find_symmetric(evidence: Evidence) -> Iterable[Finding]:
    """All ranks have been in the same call for long."""
    yield from _tell(evidence, "COL005")


@check("NET011", family="hangs", needs=NEEDS, id="hangs.link", required=False, commands=JOB)
def find_lost_link(evidence: Evidence) -> Iterable[Finding]:
    """All ranks wait, and nothing gets through between two hosts, or an interface is down."""
    yield from _tell(evidence, "NET011")


@check("NET014", family="hangs", needs=NEEDS, id="hangs.large_packets", required=False, commands=JOB)
def find_lost_large_packets(evidence: Evidence) -> Iterable[Finding]:
    """All ranks wait, and between two hosts only small packets get through."""
    yield from _tell(evidence, "NET014")


@check("ENV003", family="hangs", needs=NEEDS, id="hangs.world_size", required=False, commands=JOB)
def find_larger_world(evidence: Evidence) -> Iterable[Finding]:
    """Ranks wait in init_process_group for a larger world than was started, or for worlds of different size."""
    yield from _tell(evidence, "ENV003")


@check("NET006", family="hangs", needs=NEEDS, id="hangs.unjoined", required=False, commands=JOB)
def find_unjoined_ranks(evidence: Evidence) -> Iterable[Finding]:
    """Ranks wait in init_process_group for some that were not seen."""
    yield from _tell(evidence, "NET006")


@check("COL006", family="hangs", needs=NEEDS, id="hangs.groups", required=False, commands=JOB)
def find_group_mismatch(evidence: Evidence) -> Iterable[Finding]:
    """Some ranks make a process group, and others do not take part."""
    yield from _tell(evidence, "COL006")


@check("COL009", family="hangs", needs=NEEDS, id="hangs.stalled", required=False, commands=JOB)
def find_stalled(evidence: Evidence) -> Iterable[Finding]:
    """A rank stands outside of every collective and does not move, while others wait for it."""
    yield from _tell(evidence, "COL009")


@check("COL011", family="hangs", needs=NEEDS, id="hangs.point_to_point", required=False, commands=JOB)
def find_unmatched(evidence: Evidence) -> Iterable[Finding]:
    """A rank sends or receives, and the other side is never made."""
    yield from _tell(evidence, "COL011")


@check("COL009", family="hangs", needs=NEEDS, id="hangs.progress", commands=JOB)
def find_progress(evidence: Evidence) -> Iterable[Finding]:
    """The job moves, or a finding says why it does not; else it has to be said that this is not known."""
    look = last_look(evidence)
    if look.stage in ("look", "brief") and judge_look(evidence) is None:
        raise CannotLook(describe_standing(read_look(look)))
    return ()


@check("DAT003", family="hangs", needs=NEEDS, id="hangs.batches", required=False, commands=JOB)
def find_uneven_batches(evidence: Evidence) -> Iterable[Finding]:
    """The loader of a loop gives ranks different numbers of batches, and those with more wait for the others."""
    yield from _tell(evidence, "DAT003")
