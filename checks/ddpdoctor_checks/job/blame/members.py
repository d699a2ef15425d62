"""The nodes of a job that one of them could not hear any more: lost, or only not heard."""

from __future__ import annotations

from datetime import datetime, timezone

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.members import JobNode
from ddpdoctor_checks.common.wording import join_words, name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure, Level
from ddpdoctor_checks.job.blame.views import View

SILENT_S = 8.0
"""Without a sign of life after which a node counts as lost. One comes each second (a hundredth more for each node), and
an agent on a starved machine was seen to be 2 s late; a node that vanishes is noticed by the ranks of others only when
their own limits are over, which is later than this or by the end of a connection, which is seen by itself."""

SILENT_EACH_S = 0.02
"""More for each node of the job: twice by what its signs of life are rarer."""


def is_lost(member: JobNode, nodes: int = 2) -> bool:
    """Whether a node is gone or cut off, as another one saw it.

    Args:
        member: what was seen.
        nodes: of the job: of many each gives its signs of life more rarely.
    """
    if member.state == "silent":
        return member.silent_s is not None and member.silent_s >= SILENT_S + SILENT_EACH_S * nodes
    return member.state in ("closed", "cut")


def lose_members(diagnosis: Diagnosis) -> bool:
    """Make nodes that fell silent the cause, with the ranks that were on them; return whether there are any."""
    job = diagnosis.job
    if job is not None and (job.interrupted is not None or (job.exit_code == 0 and not diagnosis.failures)):
        return False
    members = diagnosis.evidence.members
    lost = [member for member in members if is_lost(member, len(members))]
    failures = []
    for member in lost:
        sure = "high" if member.state == "closed" else "medium"
        for rank in (*member.ranks,) or (None,):
            view = View(member.node, rank=rank, attempt=diagnosis.attempt, host=member.host)
            failures.append(Failure(view, Level.SILENT, "NET015", _last_sign(member), sure=sure))
    if not failures:
        return False
    nodes = {member.node for member in lost}
    diagnosis.failures = [each for each in diagnosis.failures if each.view.node not in nodes] + failures
    diagnosis.cause = Group("NET015", Level.SILENT, failures, failures[0])
    return True


def describe_loss(member: JobNode) -> str:
    """Return how the loss of a node showed, for a sentence."""
    if member.state == "closed":
        return (
            "its connection to the rendezvous ended without a message: its processes were killed, or the "
            "host went down"
        )
    if member.state == "cut":
        return "it no longer acknowledges packets: the host is down, or the link between is"
    since = f" for {member.silent_s:.0f} s" if member.silent_s is not None else ""
    return f"no heartbeat{since}, and its connections never ended: the host is down, or the link to it is"


def _last_sign(member: JobNode) -> str:
    if member.seen_ns is None:
        return "disappeared without a record"
    seen = datetime.fromtimestamp(member.seen_ns / 1e9, timezone.utc)
    return f"last heartbeat at {seen:%H:%M:%S.%f}"[:-5] + " UTC by its own clock"


def find_lost(diagnosis: Diagnosis, node: int) -> JobNode | None:
    """Return what is known of a lost node."""
    members = diagnosis.evidence.members
    return next((each for each in members if each.node == node and is_lost(each, len(members))), None)


def unheard_ranks(diagnosis: Diagnosis) -> RankSet:
    """Return the ranks of nodes whose evidence is missing: nothing can be said of them."""
    members = diagnosis.evidence.members
    if not members:
        return RankSet()
    return diagnosis.world.minus(RankSet().union(*(each.ranks for each in members if each.state == "told")))


def find_stopped(diagnosis: Diagnosis) -> JobNode | None:
    """Return another node on which somebody told the job to end."""
    return next((each for each in diagnosis.evidence.members if each.interrupted and not each.own), None)


def describe_unheard(diagnosis: Diagnosis) -> str:
    """Return what else is known of other nodes, for a reason: whom nobody heard, and who was told to end there."""
    ranks = unheard_ranks(diagnosis)
    members = [each for each in diagnosis.evidence.members if each.state != "told"]
    parts = []
    if ranks and members:
        hosts = join_words([each.host or f"node {each.node}" for each in members], few=4)
        left = any(each.state == "left" for each in members)
        why = ", where the rendezvous was already gone," if left else ""
        parts.append(f"{name_set(ranks)} on {hosts}{why} were not observed here")
    stopped = find_stopped(diagnosis)
    if stopped is not None:
        parts.append(f"the job was stopped on {stopped.host} ({stopped.interrupted})")
    return "; ".join(parts)
