"""COL: what a look at ranks that stand still shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, diagnosis, once
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.wording import capitalise
from ddpdoctor_checks.job.blame.failures import OWN
from ddpdoctor_checks.job.blame.judging import diagnose
from ddpdoctor_checks.job.blame.restarts import advise_restarts, describe_store, restarted_into_store
from ddpdoctor_checks.job.calls.unfollowed import FIX, find_skipped_backward
from ddpdoctor_checks.job.hangs.beside import find_beside
from ddpdoctor_checks.job.hangs.broken_links import find_network
from ddpdoctor_checks.job.hangs.creations import find_crossed
from ddpdoctor_checks.job.hangs.reading import INIT, Reading, last_look, ranks_of, read_look
from ddpdoctor_checks.job.hangs.stalls import find_stall
from ddpdoctor_checks.job.hangs.starting import find_starting
from ddpdoctor_checks.job.hangs.uneven_batches import explain_by_batches
from ddpdoctor_checks.job.hangs.unjoined import find_ports, find_sizes
from ddpdoctor_checks.job.hangs.unwatched import describe_standing, find_busy, judge_stacks
from ddpdoctor_checks.job.hangs.waits import find_deadlock, to_finding

NEEDS = ("standstills",)


@once
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
    apart = find_sizes(reading, look.stage) or find_ports(reading, look.stage)
    if apart is not None or beside is not None:
        found: Finding | None = apart or beside
    elif deadlock is not None:
        told = dataclasses.replace(to_finding(deadlock, reading), code=deadlock.code)
        found = _explain_by_skip(told, evidence) or explain_by_batches(told, reading)
    else:
        others = {member.node: member.host for member in evidence.members}
        found = find_network(reading, look.stage, others)
        if found is None:
            stall = find_stall(reading, look.stage) or find_starting(reading, look.stage)
            found = _behind_thread(stall, evidence)
        found = _behind_restart(_behind_failure(found, reading, evidence), reading, evidence)
    if found is not None and look.stage == "withdrawn":
        return dataclasses.replace(found, state="withdrawn", severity="info", decisive=False)
    return found


def _explain_by_skip(found: Finding, evidence: Evidence) -> Finding | None:
    """Return a hang of collectives that do not meet by the ranks that skipped a backward pass; None where none did."""
    skipped = find_skipped_backward(evidence) if found.code in ("COL002", "COL003") else None
    if skipped is None or skipped.ranks.minus(found.ranks.union(found.victims)):
        return None
    others = found.ranks.union(found.victims).minus(skipped.ranks)
    where = [
        dataclasses.replace(each, role="victim")
        if each.role == "culprit" and not each.ranks.minus(others)
        else each
        for each in found.where
    ]
    return dataclasses.replace(
        found,
        message=f"{found.message} {capitalise(str(skipped))}.",
        ranks=skipped.ranks,
        victims=others,
        where=(*skipped.places, *where),
        fix=(FIX,),
    )


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


def _behind_restart(found: Finding | None, reading: Reading, evidence: Evidence) -> Finding | None:
    """Say of ranks that hang in init_process_group after a restart what the attempt before may have to do with it."""
    living = [place for place in reading.places if place.kind != "gone"]
    meeting = all(place.call is not None and place.call.op == INIT for place in living)
    if found is None or not meeting or not restarted_into_store(evidence, (p.stand.pid for p in living)):
        return found
    return dataclasses.replace(
        found, evidence=(*found.evidence, describe_store()), fix=(advise_restarts(), *found.fix)
    )


@diagnosis(
    "hangs.progress",
    codes=(
        "COL008", "COL006", "ENV003", "ENV004", "NET014", "NET011", "COL002", "COL003", "COL009", "COL005", "DAT003",
        "NET006", "COL011", "COL004",
    ),
    family="hangs",
    needs=NEEDS,
    commands=JOB,
)  # fmt: skip
def find_hang(evidence: Evidence) -> Iterable[Finding]:
    """The job moves, or a finding says why it does not; else it has to be said that this is not known."""
    look = last_look(evidence)
    found = judge_look(evidence)
    if found is not None:
        yield found
    elif look.stage in ("look", "brief"):
        raise CannotLook(describe_standing(read_look(look)))
