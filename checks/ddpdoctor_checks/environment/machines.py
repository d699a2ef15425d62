"""The machines themselves: clocks, and ranks that earlier jobs left behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, Leftover, NodeFacts
from ddpdoctor.evidence.members import JobNode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.places import Places, require, require_several_nodes
from ddpdoctor_checks.common.wording import choose_form, count_of, format_age, join_words

TOLERATED_S = 1.0
"""torchelastic writes the times of failures in whole seconds (ProcessFailure.timestamp), and calls the
failure with the smallest one the root cause: clocks that differ by more can put a victim first."""


@check("ENV015", family="environment", needs=(), id="env.clocks.agree", required=False)
def find_clocks_differ(evidence: Evidence) -> Iterable[Finding]:
    """Node clocks differ by more than the analysis tolerates."""
    if not evidence.members:
        require(evidence, "nodes", "the clocks of the nodes")
    require_several_nodes(evidence)
    compared: Sequence[NodeFacts | JobNode] = evidence.nodes or evidence.members
    hosting = next((member.node for member in evidence.members if member.head), 0)
    measured = [node for node in compared if node.node != hosting and node.clock_offset_s is not None]
    if not measured:
        if evidence.members:  # only the node that hosts the rendezvous of a job compares them
            raise NotApplicable("the clocks of the nodes were not compared here")
        raise CannotLook("the clocks of the nodes were not compared")
    places = Places(evidence)
    wrong = [node for node in measured if _off_by(node) > TOLERATED_S]
    if not wrong:
        return
    numbers = [node.node for node in wrong]
    hosts = {node.node: node.host or places.host(node.node) for node in compared}
    names = tuple(dict.fromkeys(hosts[number] for number in numbers))
    said = [
        f"{hosts[node.node]} {format_offset(node.clock_offset_s or 0.0)}"
        for node in sorted(wrong, key=_off_by, reverse=True)
    ]
    yield Finding(
        message=f"Clocks differ from {hosts.get(hosting, places.host(hosting))}'s: {join_words(said)}.",
        role="advice",
        ranks=places.ranks(numbers),
        nodes=names,
        evidence=tuple(
            EvidenceItem(
                "clock",
                f"{hosts[node.node]}: {node.clock_offset_s:+.3f} s, known to {node.clock_error_s or 0.0:.3f} s",
            )
            for node in wrong[:16]
        ),
        fix=(
            Fix(
                f"on {join_words(names, few=4)}, check whether the clock is synchronized",
                "timedatectl",
            ),
            Fix("step it once", "sudo chronyc makestep"),
        ),
        details={
            "offsets_s": {hosts[node.node]: node.clock_offset_s for node in wrong},
            "tolerated_s": TOLERATED_S,
        },
    )


def _off_by(node: NodeFacts | JobNode) -> float:
    """Seconds by which the clock is off for certain."""
    return abs(node.clock_offset_s or 0.0) - (node.clock_error_s or 0.0)


def format_offset(seconds: float) -> str:
    """Return ``3.2 s ahead`` or ``12 min behind``."""
    size = f"{abs(seconds):.1f} s" if abs(seconds) < 120 else format_age(abs(seconds))
    return f"{size} {'ahead' if seconds > 0 else 'behind'}"


@check("ENV016", family="environment", needs=("nodes",), id="env.leftovers.none", required=False)
def find_orphaned_ranks(evidence: Evidence) -> Iterable[Finding]:
    """Ranks of an earlier job still run."""
    places = Places(evidence)
    ours = {(rank.node, rank.pid) for rank in evidence.ranks}
    notes = [node.leftovers_note for node in evidence.nodes if node.leftovers_note]
    found = False
    for node in evidence.nodes:
        orphans = [each for each in node.leftovers if each.orphaned and (node.node, each.pid) not in ours]
        if orphans:
            found = True
            yield _describe_orphans(evidence, places, node, orphans)
    if not found and notes:
        raise CannotLook(notes[0])


def _describe_orphans(
    evidence: Evidence, places: Places, node: NodeFacts, orphans: list[Leftover]
) -> Finding:
    ports = sorted({port for each in orphans for port in each.ports})
    devices = sorted({device for each in orphans for device in each.devices})
    holds = [count_of(len(ports), "port") + f" ({', '.join(map(str, ports[:8]))})"] if ports else []
    holds += [join_words(devices)] if devices else []
    oldest = format_age(max(each.age_s for each in orphans))
    who = [f"{each.pid}{f' (rank {each.rank})' if each.rank is not None else ''}" for each in orphans]
    pids = " ".join(str(each.pid) for each in orphans)
    takes = evidence.launch.master_port in ports
    held = f", and {choose_form(len(orphans), 'holds', 'hold')} {join_words(holds)}" if holds else ""
    return Finding(
        message=f"On {node.host} {count_of(len(orphans), 'rank')} of an earlier job still "
        f"{choose_form(len(orphans), 'runs', 'run')}, {choose_form(len(orphans), 'process', 'processes')} "
        f"{join_words(who)}, {choose_form(len(orphans), '', 'up to ')}{oldest} old{held}.",
        role="cause" if takes else "advice",
        ranks=places.ranks([node.node]),
        nodes=(node.host,),
        evidence=tuple(
            EvidenceItem(
                "process", f"{each.pid}: {each.command} (parent {each.parent}, {format_age(each.age_s)} old)"
            )
            for each in orphans[:16]
        ),
        fix=(
            Fix(f"end {choose_form(len(orphans), 'it', 'them')} on {node.host}", f"kill {pids}"),
            Fix("if processes remain after some seconds", f"kill -9 {pids}"),
        ),
        details={
            "processes": [
                {"pid": each.pid, "age_s": each.age_s, "rank": each.rank, "run_id": each.run_id}
                for each in orphans
            ],
            "ports": ports,
            "devices": devices,
        },
    )
