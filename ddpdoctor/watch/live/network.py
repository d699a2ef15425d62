"""The connections of ranks at a look, from the kernel's tables beside them: nothing is sent, no process is touched."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.evidence.sockets import Connection, LinkState, NodeNetwork
from ddpdoctor.gather.network.listeners import open_targets, socket_inodes
from ddpdoctor.gather.network.netlink import (
    TcpSocket,
    in_network_of,
    list_links,
    list_tcp,
    list_tcp_from_proc,
)
from ddpdoctor.gather.process_state import PARENT, read_stat

MOST_CONNECTIONS = 1024
"""Most connections of one node that are kept, a third of a megabyte in a look: those on which something waits first,
then those to other hosts."""
Ends = tuple[tuple[str, int], tuple[str, int]]


@dataclass(slots=True)
class Sample:
    """All TCP sockets of the networks in which ranks live."""

    source: str = "none"
    sockets: dict[Ends, TcpSocket] = field(default_factory=dict)
    links: tuple[LinkState, ...] = ()
    note: str | None = None


def take_sample(pids: Sequence[int]) -> Sample:
    """Read the network of processes; those of one node nearly always share it.

    Args:
        pids: of ranks of this node. Never raises.
    """
    sample = Sample()
    for pid in _one_for_each_network(pids):
        try:
            sockets, links = in_network_of(pid, lambda: (list_tcp(), list_links()))
            sample.source = "sock_diag"
            sample.links += links
        except (OSError, ValueError) as problem:
            sample.note = f"the kernel's connection table could not be read: {problem}"[:200]
            try:
                sockets = list_tcp_from_proc(pid)
            except (OSError, ValueError):
                continue
            sample.source = "proc" if sample.source == "none" else sample.source
        sample.sockets.update(((each.near, each.far), each) for each in sockets)
    return sample


def _one_for_each_network(pids: Iterable[int]) -> list[int]:
    found: dict[int, int] = {}
    for pid in pids:
        try:
            found.setdefault(Path(f"/proc/{pid}/ns/net").stat().st_ino, pid)
        except OSError:
            continue
    return list(found.values())


def describe(ranks: Mapping[int, int | None], before: Sample, after: Sample, node: int) -> NodeNetwork:
    """Return the connections of processes as they stood at the second sample, and whether they moved.

    Args:
        ranks: process -> rank.
        before: the first sample.
        after: the second one.
        node: number of this node.
    """
    owners: dict[int, int | None] = {}
    unread = 0
    every = {**dict.fromkeys(_find_parents(ranks)), **ranks}
    for pid, rank in every.items():
        targets = open_targets(pid)
        unread += not targets and pid in ranks
        owners.update(dict.fromkeys(socket_inodes(targets), rank))
    own = [each for each in after.sockets.values() if each.inode in owners]
    rows = [_connect(each, before.sockets.get((each.near, each.far)), owners[each.inode]) for each in own]
    local = {address for link in after.links for address in link.addresses}

    def order(row: Connection) -> tuple[bool, bool, int]:
        address = row.far.rpartition(":")[0].strip("[]")
        waits = bool(row.unacknowledged or row.unread)
        return not waits, address in local or address.startswith("127."), -1 if row.rank is None else row.rank

    rows.sort(key=order)
    note = after.note or before.note
    if unread:
        note = f"no permission to list the sockets of {unread} of {len(ranks)} ranks"
    return NodeNetwork(
        node,
        socket.gethostname(),
        tuple(rows[:MOST_CONNECTIONS]),
        after.links,
        after.source,
        max(0, len(rows) - MOST_CONNECTIONS),
        note,
    )


def _find_parents(pids: Iterable[int]) -> set[int]:
    """Return the processes that have started these: agents, which talk to those of other nodes."""
    found: set[int] = set()
    for pid in pids:
        fields = read_stat(pid)
        if fields:
            found.add(int(fields[PARENT]))
    return found - {0, 1}


def _connect(now: TcpSocket, before: TcpSocket | None, rank: int | None) -> Connection:
    info = now.info
    return Connection(
        rank=rank,
        near=_name(now.near),
        far=_name(now.far),
        state=now.state,
        unacknowledged=now.send_queue,
        unread=now.receive_queue,
        repeats=now.repeats,
        moved=before is None or _progress(before) != _progress(now),
        passed_bytes=_count_passed(before, now),
        heard_s=info.heard_s if info is not None else None,
        acked_bytes=info.acked_bytes if info is not None else None,
        acked_segments=info.delivered if info is not None else None,
        received_bytes=info.received_bytes if info is not None else None,
        repeated=info.repeated if info is not None else None,
        segment_bytes=info.segment_bytes if info is not None else None,
        path_mtu=info.path_mtu if info is not None else None,
        rtt_s=info.rtt_s if info is not None else None,
    )


def _progress(each: TcpSocket) -> tuple[object, ...]:
    """Return what changes where data passes; what is sent again and again changes nothing of it."""
    if each.info is None:
        return (each.state, each.send_queue, each.receive_queue)
    return (each.state, each.info.acked_bytes, each.info.received_bytes, each.receive_queue)


def _count_passed(before: TcpSocket | None, now: TcpSocket) -> int | None:
    if before is None or before.info is None or now.info is None or now.info.acked_bytes is None:
        return None
    counted = (
        now.info.acked_bytes,
        now.info.received_bytes,
        before.info.acked_bytes,
        before.info.received_bytes,
    )
    acked, received, acked_before, received_before = (each or 0 for each in counted)
    return max(0, acked - acked_before) + max(0, received - received_before)


def _name(end: tuple[str, int]) -> str:
    address, port = end
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
