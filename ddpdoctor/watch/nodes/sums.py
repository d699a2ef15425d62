"""Several nodes in one verdict: what the head makes of the others' sums.

The agents carry it (``ddpdoctor_watch/nodes/agents.py``, docs/adr/0006). Everything that comes from another node is
data of somebody else: read with limits, never trusted to be whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.nodes.parcels import UNPACKED_BYTES

if TYPE_CHECKING:
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.evidence.members import JobNode
    from ddpdoctor.facts.events import AnyEvent

FOLDER = "nodes"
"""Folder below the run directory of the head that holds what the other nodes told, one file for each."""
EVENTS_BYTES = 64 << 20
NODES = 16_384
RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """Where the report on all nodes is."""

    host: str
    directory: str
    arrived: bool
    """What was seen here has come there."""


@dataclass(slots=True)
class _Told:
    """What the agent wrote down of the nodes."""

    own: Any = field(default_factory=dict)
    """Event ``node``."""
    peers: dict[int, Any] = field(default_factory=dict)
    """Number of a node -> its events ``peer`` in one."""
    sent: Any = None
    """Event ``sent``."""


def _read_told(path: Path, evidence: Evidence) -> _Told:
    told = _Told()
    launchers = {process.pid for process in evidence.processes if process.role == "launcher"}
    for file in sorted((path / "processes").glob("*.jsonl")):
        if file.name.partition("-")[0] in map(str, launchers):
            with contextlib.suppress(OSError):
                for event in _read_events(file):
                    _take(told, event)
    return told


def _read_events(file: Path) -> Iterable[AnyEvent]:
    from ddpdoctor.watch.readers.events import read_events

    with open_regular(file) as stream:
        for line in stream.read(EVENTS_BYTES).split(b"\n"):
            if line.startswith((b'{"event":"node"', b'{"event":"peer"', b'{"event":"sent"')):
                yield from read_events(line)


def _take(told: _Told, event: AnyEvent) -> None:
    if event["event"] == "node":
        told.own, told.peers, told.sent = event, {}, None  # a new meeting: nodes may have changed places
    elif event["event"] == "sent":
        told.sent = event
    elif event["event"] == "peer" and _is_node(event.get("node")):
        told.peers.setdefault(event["node"], {}).update(event)


def _is_node(value: object) -> bool:
    return type(value) is int and 0 <= value < NODES


def read_members(path: Path, evidence: Evidence) -> tuple[JobNode, ...]:
    """Return the nodes of the job as this one knew them; none where it was alone.

    Args:
        path: the run directory.
        evidence: of this node.
    """
    from ddpdoctor.evidence.members import JobNode

    told = _read_told(path, evidence)
    node, count = told.own.get("node"), told.own.get("nodes")
    if (
        not isinstance(count, int)
        or not 2 <= count <= NODES
        or not isinstance(node, int)
        or not 0 <= node < count
    ):
        return ()
    made: dict[int, JobNode] = {each: JobNode(each) for each in range(count)}
    head = bool(told.own.get("head"))
    made[node] = JobNode(
        node, str(told.own.get("host") or ""), _ranks(told.own), own=True, head=head, state="told",
        clock_offset_s=0.0 if head else None, clock_error_s=0.0 if head else None,
    )  # fmt: skip
    for other, known in told.peers.items():
        if other < count and other != node:
            made[other] = _make_peer(other, known)
    found = (told.sent or {}).get("head")
    if isinstance(found, dict) and _is_node(found.get("node")) and found["node"] < count:
        made[found["node"]] = JobNode(
            found["node"],
            str(found.get("host") or ""),
            _ranks(found),
            head=True,
            state=_judge_sending(told.sent or {}),
        )
    return tuple(made.values())


def _judge_sending(sent: dict[str, Any]) -> str:
    if sent.get("arrived"):
        return "alive"
    return {"unacknowledged": "cut", "closed": "left"}.get(str(sent.get("connection")), "unknown")


def _ranks(known: dict[str, Any]) -> Any:
    from ddpdoctor.evidence import RankSet

    ranks = known.get("ranks")
    return (
        RankSet(each for each in ranks if type(each) is int and each >= 0)
        if isinstance(ranks, list)
        else RankSet()
    )


def _make_peer(node: int, known: dict[str, Any]) -> JobNode:
    from ddpdoctor.evidence.members import JobNode

    offset, error, seen = (known.get(name) for name in ("offset_ns", "error_ns", "alive_ns"))
    apart = offset / 1e9 if isinstance(offset, int) else None
    silent = None
    written = known.get("wall_ns")
    if apart is not None and isinstance(seen, int) and isinstance(written, int) and not known.get("told"):
        silent = max(0.0, (written - seen) / 1e9 + apart)
    return JobNode(
        node,
        str(known.get("host") or ""),
        _ranks(known),
        state=_judge_peer(known),
        silent_s=silent,
        seen_ns=seen if isinstance(seen, int) and seen > 0 else None,
        clock_offset_s=apart,
        clock_error_s=error / 1e9 if isinstance(error, int) else None,
    )


def _judge_peer(known: dict[str, Any]) -> str:
    if known.get("told"):
        return "told" if known.get("whole") else "ended"
    if "told" not in known:
        return "unknown"  # the head's agent was gone before it could look
    if "host" not in known:
        return "unwatched"
    if known.get("state") in ("stopping", "done"):
        return str(known["state"])
    if known.get("closed"):
        return "closed"
    return "alive" if known.get("moved") else "silent"


def find_head(path: Path, evidence: Evidence) -> Head | None:
    """Return where the report on all nodes is; None on the head itself, and where nobody watches there."""
    sent = _read_told(path, evidence).sent
    head = (sent or {}).get("head")
    if not isinstance(head, dict) or not head.get("run"):
        return None
    return Head(str(head.get("host"))[:255], str(head["run"])[:4096], bool((sent or {}).get("arrived")))


def add_nodes(path: Path, evidence: Evidence) -> Evidence:
    """Return this node's evidence with what the others told it, each row with its node.

    Args:
        path: the run directory.
        evidence: of this node, numbered 0.
    """
    from ddpdoctor.evidence.bundle import renumber_node
    from ddpdoctor.evidence.nodes import describe_launch, join_evidence

    members = read_members(path, evidence)
    own = next((each for each in members if each.own), None)
    if own is None:
        return evidence
    mine = dataclasses.replace(renumber_node(evidence, own.node), members=members)
    lost: list[str] = []
    parts = [mine]
    for member in members:
        if member.state == "told" and not member.own:
            part = _read_part(path / FOLDER / f"{member.node}.json", member, lost)
            if part is not None:
                parts.append(part)
    read = {each.node for part in parts[1:] for each in part.members}
    kept = tuple(
        dataclasses.replace(each, state="ended")
        if each.state == "told" and not each.own and each.node not in read
        else each
        for each in members
    )
    parts[0] = dataclasses.replace(mine, members=kept)
    return describe_launch(join_evidence(parts), lost)


def _read_part(path: Path, member: JobNode, lost: list[str]) -> Evidence | None:
    """Read what a node told; every row is that node's, whatever it says."""
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.evidence.bundle import KINDS, renumber_node
    from ddpdoctor.evidence.nodes import BY_NODE

    try:
        with open_regular(path) as file:
            part = Evidence.from_dict(json.loads(file.read(UNPACKED_BYTES + 1)))
        require_numbers(part)
        changes: dict[str, Any] = {kind: () for kind in KINDS if kind not in BY_NODE}
        own = tuple(each for each in part.members if each.own)[:1] or (member,)
        own = (dataclasses.replace(own[0], node=member.node, own=False, head=False, state="told"),)
        changes.update(members=own, extra={}, absent={})
        return renumber_node(dataclasses.replace(part, **changes), member.node)
    except (OSError, ValueError, TypeError, RecursionError) as problem:
        lost.append(
            f"the report of {member.host or f'node {member.node}'} could not be read: {problem}"[:300]
        )
        return None


def require_numbers(part: Evidence) -> None:
    """Refuse ranks and sizes that no job has: what is judged counts up to them.

    Raises:
        ValueError: there is one.
    """
    rows: list[Any] = [
        *part.processes,
        *part.exceptions,
        *part.crashes,
        *part.texts,
        *part.wrappers,
        *part.ranks,
    ]
    numbers = [
        number for row in rows for number in (row.rank, getattr(row, "attempt", 0)) if number is not None
    ]
    numbers += [each.world_size for each in part.processes if each.world_size is not None]
    numbers += [high for member in part.members for _, high in member.ranks.ranges]
    if any(not 0 <= number < RANKS for number in numbers):
        raise ValueError("a rank or a size that no job has")
