"""COL: what a look at ranks that stand still shows, one check for each code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, check, check_also
from ddpdoctor_checks.crash import collectives as ended
from ddpdoctor_checks.crash import network as lost
from ddpdoctor_checks.crash.failures import OWN
from ddpdoctor_checks.crash.judging import diagnose
from ddpdoctor_checks.crash.telling import JOB
from ddpdoctor_checks.environment import worlds
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
from ddpdoctor_checks.network import joining
from ddpdoctor_checks.network import links as examined

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


@check_also(
    ended.find_collective_missing,
    id="hangs.missing",
    family="hangs",
    needs=NEEDS,
    required=False,
    commands=JOB,
)
def find_missing_call(evidence: Evidence) -> Iterable[Finding]:
    """Ranks wait in a call, and the others, which it needs, wait in another one."""
    yield from _tell(evidence, "COL002")


@check_also(
    ended.find_mismatch, id="hangs.mismatch", family="hangs", needs=NEEDS, required=False, commands=JOB
)
def find_other_call(evidence: Evidence) -> Iterable[Finding]:
    """At one number of a group ranks stand in calls that do not fit."""
    yield from _tell(evidence, "COL003")


@check_also(
    ended.find_finished_early,
    id="hangs.early_exit",
    family="hangs",
    needs=NEEDS,
    required=False,
    commands=JOB,
)
def find_early_exit(evidence: Evidence) -> Iterable[Finding]:
    """Ranks wait for one that has left the program."""
    yield from _tell(evidence, "COL008")


@check_also(
    ended.find_timeout, id="hangs.symmetric", family="hangs", needs=NEEDS, required=False, commands=JOB
)
def find_symmetric(evidence: Evidence) -> Iterable[Finding]:
    """All ranks have been in the same call for long."""
    yield from _tell(evidence, "COL005")


@check_also(lost.find_link_lost, id="hangs.link", family="hangs", needs=NEEDS, required=False, commands=JOB)
def find_lost_link(evidence: Evidence) -> Iterable[Finding]:
    """All ranks wait, and nothing gets through between two hosts, or an interface is down."""
    yield from _tell(evidence, "NET011")


@check_also(
    examined.find_large_packets_lost,
    id="hangs.large_packets",
    family="hangs",
    needs=NEEDS,
    required=False,
    commands=JOB,
)
def find_lost_large_packets(evidence: Evidence) -> Iterable[Finding]:
    """All ranks wait, and between two hosts only small packets get through."""
    yield from _tell(evidence, "NET014")


@check_also(
    worlds.find_world_inconsistent,
    id="hangs.world_size",
    family="hangs",
    needs=NEEDS,
    required=False,
    commands=JOB,
)
def find_larger_world(evidence: Evidence) -> Iterable[Finding]:
    """Ranks wait in init_process_group for a larger world than was started, or for worlds of different size."""
    yield from _tell(evidence, "ENV003")


@check_also(
    joining.find_ranks_missing,
    id="hangs.unjoined",
    family="hangs",
    needs=NEEDS,
    required=False,
    commands=JOB,
)
def find_unjoined_ranks(evidence: Evidence) -> Iterable[Finding]:
    """Ranks wait in init_process_group for some that were not seen."""
    yield from _tell(evidence, "NET006")


@check(
    "COL006",
    name="group-creation-mismatch",
    title="new_group is not called by all ranks, or with other lists",
    severity="error",
    family="hangs",
    needs=NEEDS,
    since="0.1.0",
    id="hangs.groups",
    required=False,
    commands=JOB,
)
def find_group_mismatch(evidence: Evidence) -> Iterable[Finding]:
    """Some ranks make a process group, and others do not take part.

    What it looks for:
        Ranks that wait in ``new_group`` (or ``split_group``) while others that belong to the group wait elsewhere; and
        ranks blocked in groups whose name stands for other members on other ranks.

    Why it matters:
        Making a group is a collective of its members, and by the documentation of the whole job. Those that call it
        wait for those that do not until the time limit of the group, 30 minutes by default. torch names a group by the
        number of groups that its rank created before: a rank that skips one gives all later groups names that mean
        others elsewhere, and their members meet the wrong ranks. Such a job hangs in a group that is not the cause.

    How it decides:
        By the calls that each rank wrote down before it made them, counted by the ranks that a group is made of, and by
        who waits for whom: none of them can make progress. Where ranks gave one name to groups of other members, and a
        rank is blocked in that group or a later one, the first such group is named with both lines; the ranks inside a
        rank-dependent branch are at fault, and without one no rank is cleared. In the source (``lint``) as COL002,
        where ``new_group`` is in a rank-dependent branch, or the two sides of one create groups of other lists.

    Known false alarms:
        ``use_local_synchronization=True`` lets only the members call it, under a name made of their ranks: such groups
        are not compared.

    Fix:
        Call ``new_group`` on every rank, with the same ranks in the same order, outside of any test of the rank.

    References:
        https://docs.pytorch.org/docs/stable/distributed.html (torch.distributed.new_group)
    """
    yield from _tell(evidence, "COL006")


@check(
    "COL009",
    name="rank-stalled",
    title="A rank is outside of every collective and does not move, while others wait for it",
    severity="error",
    family="hangs",
    needs=NEEDS,
    since="0.1.0",
    id="hangs.stalled",
    required=False,
    commands=JOB,
)
def find_stalled(evidence: Evidence) -> Iterable[Finding]:
    """A rank stands outside of every collective and does not move, while others wait for it.

    What it looks for:
        A rank whose stack is the same in two samples, that uses hardly any processor and that has made no call for
        longer than the longer of 10 s and ten median steps (``--stall-after``), while at least one other rank waits
        in a collective. Before there is a process group: ranks that all wait in a store, in torch.distributed.rpc or
        for a lock on a file.

    Why it matters:
        The ranks that wait are the ones that time out and are named by torch; the one that holds them says nothing.

    How it decides:
        Below 10 % of one core and with equal lines in both samples a rank does not move; one that computes counts only
        after ``--hang-timeout``, where it is still on the same line of its own. Only ranks are named that others wait
        for, by the numbers of their calls, and nobody while another such rank moves. What a rank does is read from its
        process state (stopped, uninterruptible), its innermost frames (loader, lock, subprocess, network, checkpoint)
        and its own source line. Where these say nothing (a call into a library), the native frames of the stalled rank
        are taken once the stall is confirmed: the innermost function that is no system library's is named, with its
        library. Ranks that wait for a key of a store, for workers of rpc or for a lock file while no rank waits in a
        collective are named together, with who holds the lock where the kernel shows it; a rank that does something
        else meanwhile is given until ``--hang-timeout``, and one that computes or has a working child ends the
        suspicion. It is *suspected* first, *confirmed* after ``--hang-timeout`` (300 s), and *withdrawn*
        when it moves.

    Known false alarms:
        Waiting on purpose: one rank downloads or preprocesses while the others wait. It moves again, and the suspicion
        is withdrawn.

    Fix:
        By what it does: a time limit for the loader, the request or the program it waits for; SIGCONT for a stopped
        one.

    References:
        https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html (states)
        https://github.com/benfred/py-spy
    """
    yield from _tell(evidence, "COL009")


@check(
    "COL011",
    name="point-to-point-unmatched",
    title="A send or receive whose other side is never made",
    severity="error",
    family="hangs",
    needs=NEEDS,
    since="0.1.0",
    id="hangs.point_to_point",
    required=False,
    commands=JOB,
)
def find_unmatched(evidence: Evidence) -> Iterable[Finding]:
    """A rank sends or receives, and the other side is never made.

    What it looks for:
        Ranks that wait in ``send`` or ``recv`` while the rank on the other side waits elsewhere, is gone, or waits for
        them in the same direction (both receive first).

    Why it matters:
        Such a rank waits for ever: nothing of torch says which message it misses.

    How it decides:
        By the calls that each rank wrote down before it made them. The third receive from a rank needs its third send
        with that tag and group; one that was begun is on its way. A rank counts as stuck only where each rank that it
        needs is stuck or gone; a receive from any rank only where all of them are.

    Known false alarms:
        None known: a rank counts as stuck only when each rank that it needs is stuck or gone.

    Fix:
        Pair each send with its receive, in an order in which one side sends while the other receives, or use
        ``batch_isend_irecv``.

    References:
        https://docs.pytorch.org/docs/stable/distributed.html (Point-to-point communication)
    """
    yield from _tell(evidence, "COL011")


@check_also(find_stalled, id="hangs.progress", family="hangs", needs=NEEDS, commands=JOB)
def find_progress(evidence: Evidence) -> Iterable[Finding]:
    """The job moves, or a finding says why it does not; else it has to be said that this is not known."""
    look = last_look(evidence)
    if look.stage in ("look", "brief") and judge_look(evidence) is None:
        raise CannotLook(describe_standing(read_look(look)))
    return ()


@check(
    "DAT003",
    name="batches-uneven",
    title="Ranks have different numbers of batches",
    severity="error",
    family="hangs",
    needs=NEEDS,
    since="0.1.0",
    id="hangs.batches",
    required=False,
    commands=JOB,
)
def find_uneven_batches(evidence: Evidence) -> Iterable[Finding]:
    """The loader of a loop gives ranks different numbers of batches, and those with more wait for the others.

    What it looks for:
        Ranks that can never go on, while the DataLoader that they iterated last from one line was of different lengths.

    Why it matters:
        A rank that runs out of batches leaves the loop. The others wait in its backward or in a collective for a step
        that never comes, with NCCL until the time limit of the group.

    How it decides:
        Each rank writes the length of a loader down when it begins to iterate it. Only map-style data sets with
        samplers of torch are measured: asking others would run the program's own code. The same iteration of the same
        line is compared over all ranks. In a job that never stood still it is an advice, for what a wrapped model
        was trained with outside of Join: there the loop was left early.

    Known false alarms:
        None known: nothing is said while ranks get on, however their lengths differ.

    Fix:
        ``DistributedSampler(drop_last=True)`` and ``DataLoader(drop_last=True)``, or the Join context manager.

    References:
        https://docs.pytorch.org/tutorials/advanced/generic_join.html
        https://docs.pytorch.org/docs/stable/data.html (torch.utils.data.distributed.DistributedSampler)
    """
    yield from _tell(evidence, "DAT003")
