"""The nodes of a watched job, as one of them knew the others at the end, and several nodes' evidence in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence.ranks import RankSet


@dataclass(frozen=True, slots=True)
class JobNode:
    """One node of a job on several."""

    node: int
    """Group rank."""
    host: str = ""
    ranks: RankSet = field(default_factory=RankSet)
    own: bool = False
    """Whether it wrote this evidence."""
    head: bool = False
    """The others tell it what they saw: it hosts the rendezvous, or is the first."""
    state: str = "unknown"
    """What is known of it at the end.

    * told: what was seen there is part of this evidence;
    * ended: its agent has ended, but what it told is missing;
    * alive: it gave signs of life to the end;
    * stopping: its agent was stopping its ranks;
    * done: its ranks had ended well;
    * silent: no sign of life for ``silent_s``, its connection as it was;
    * closed: its connection ended, without a word;
    * cut: packets to it are not acknowledged;
    * left: the head's store was gone: ended, or lost;
    * unwatched: nobody there said hello;
    * unknown.
    """
    seen_as: str | None = None
    """The state in which another node saw it at the end, where it has told itself since."""
    silent_s: float | None = None
    """Since its last sign of life; None where clocks cannot tell."""
    seen_ns: int | None = None
    """Its last sign of life, wall clock of its own."""
    clock_offset_s: float | None = None
    """Its wall clock minus the head's."""
    clock_error_s: float | None = None
    interrupted: str | None = None
    """Signal by which the user ended the job there."""


def choose_members(parts: Sequence[tuple[JobNode, ...]]) -> tuple[JobNode, ...]:
    """Join what several nodes knew of each other: of each node what it said itself, else what the head knew of it.

    Args:
        parts: one for each evidence that is joined.
    """
    known: dict[int, JobNode] = {}
    said: dict[int, list[JobNode]] = {}
    offsets: dict[int, JobNode] = {}
    for member in (member for part in parts for member in part):
        if member.clock_offset_s is not None:
            offsets[member.node] = member
        said.setdefault(member.node, []).append(member)
        before = known.get(member.node)
        if before is None or _weight(member) > _weight(before):
            known[member.node] = member
    first = next((part for part in parts if part), ())
    writer = next((member.node for member in first if member.own), None)
    joined = []
    for node, member in sorted(known.items()):
        told = any(each.own or each.state == "told" for each in said[node])
        clock = offsets.get(node, member)
        joined.append(
            dataclasses.replace(
                member,
                own=node == writer,
                head=any(each.head for each in said[node]),
                state="told" if told else member.state,
                seen_as=next((each.seen_as or each.state for each in said[node] if not each.own), None),
                interrupted=next((each.interrupted for each in said[node] if each.interrupted), None),
                clock_offset_s=clock.clock_offset_s,
                clock_error_s=clock.clock_error_s,
            )
        )
    return tuple(joined)


def _weight(member: JobNode) -> int:
    return 2 if member.own else 1 if member.state != "unknown" else 0
