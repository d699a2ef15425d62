"""Nodes that went with all their processes, and steps that a scheduler ended for memory: no rank of theirs speaks."""

from __future__ import annotations

from ddpdoctor.evidence.texts.matching import find_entry
from ddpdoctor_checks.job.blame.conditions import SCHEDULER_KILLS
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure, Level, quote_line
from ddpdoctor_checks.job.blame.members import lose_members
from ddpdoctor_checks.job.blame.views import View

LOST_NODES = (
    "node-without-heartbeat", "scheduler-lost-node", "scheduler-node-failure", "mpirun-lost-daemon", "pod-node-gone",
)  # fmt: skip
"""The rendezvous, or the scheduler, says that a node is gone."""


def lost_node(diagnosis: Diagnosis) -> bool:
    """Make a node that went with all its processes the cause; return whether there is one.

    Such a node gave no sign of life any more, or has not a single end, while others have theirs; or the rendezvous says
    that its heartbeat stopped.
    """
    if lose_members(diagnosis):
        return True
    texts = [*diagnosis.views.loose, *(text for view in diagnosis.views.others for text in view.texts)]
    named = next((text for text in texts if text.entry in LOST_NODES), None)
    ends: dict[int, list[bool]] = {}
    for view in diagnosis.views.ranks:
        if view.process is not None and view.attempt == diagnosis.attempt:
            process = view.process
            seen = process.running or process.ended is not None or bool(view.exceptions)
            ends.setdefault(view.node, []).append(seen)
    gone = [node for node, known in ends.items() if not any(known)]
    if len(ends) < 2 or not gone or len(gone) == len(ends):
        if named is None:
            return False
        view = View(named.node, host=named.groups.get("nodes", ""), role="other")
        entry = find_entry(named.entry)
        told = Failure(view, Level.SILENT, "NET015", quote_line(named.text), entry=entry, groups=named.groups)
        diagnosis.cause = Group("NET015", Level.SILENT, [told], told)
        return True
    lost = [
        Failure(view, Level.SILENT, "NET015", "disappeared without a record", sure="medium")
        for view in diagnosis.views.ranks
        if view.node in gone and view.attempt == diagnosis.attempt
    ]
    diagnosis.failures = [each for each in diagnosis.failures if each.view.node not in gone] + lost
    diagnosis.cause = Group("NET015", Level.SILENT, lost, lost[0])
    return True


def killed_by_scheduler(diagnosis: Diagnosis) -> bool:
    """Make the scheduler's own word of a kill for memory the cause; return whether there is one.

    It names a step and not a process: whatever ranks said afterwards, they were ended or lost a peer.
    """
    said = [text for text in diagnosis.views.loose if text.entry in SCHEDULER_KILLS]
    if not said or (diagnosis.job is not None and diagnosis.job.exit_code == 0):
        return False
    view = View(said[0].node, host=said[0].host, role="other")
    told = Failure(view, Level.SIGNAL, "ERR002", quote_line(said[0].text), sure="medium")
    diagnosis.cause = Group("ERR002", Level.SIGNAL, [told], told)
    return True
