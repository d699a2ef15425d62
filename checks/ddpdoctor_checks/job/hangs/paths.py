"""What the connections between ranks that all wait show: a link that is gone, large packets that vanish, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence.sockets import Connection, LinkState, NodeNetwork
from ddpdoctor_checks.common.places import is_loopback
from ddpdoctor_checks.common.wording import count_of, format_bytes
from ddpdoctor_checks.job.hangs.reading import Reading

REPEATED = 2
"""Times in a row that the kernel has sent the same again: once is the everyday loss of a packet."""
STUCK_S = 5.0
"""Seconds for which nothing may have been confirmed on a connection that is stuck. By then the kernel has sent it again
four times (RFC 6298: after 0.2, 0.6, 1.4 and 3 s)."""
HEARD_S = 3.0
"""What came from a host so recently shows that its packets get through: agents give a sign of life each second, a
hundredth more for each node, and on a starved machine they were seen to be 2 s late."""
SILENT_S = 6.0
"""Seconds of silence on all connections from a host after which nothing from it gets through."""
FLOWS = 10_000
"""Bytes that pass between two ranks between the samples: a transfer that goes on, and no sign of life."""
SERVICES = 10_000
"""Ports below are services' (HTTP, S3, databases), which a rank may talk to as well; gloo and NCCL listen on ports that
the kernel chooses (from 32,768), and torch's stores on 29400 and 29500 unless told otherwise."""
SENDING = ("established", "syn_sent", "fin_wait1", "close_wait", "last_ack")


@dataclass(frozen=True, slots=True)
class Route:
    """All connections from one node to an address of another host."""

    node: int
    host: str
    far: str
    """Address."""
    far_node: int | None
    """None where that host's look is missing."""
    connections: tuple[Connection, ...] = ()
    heard_s: float | None = None
    """Since anything came from there, on any of them; None where the kernel does not tell."""
    reached_s: float | None = None
    """Since anything from here came there, as the kernel there tells; None where that is not known."""

    @property
    def silent_s(self) -> float | None:
        """Since anything got through in the direction that has been silent for longer."""
        return max((each for each in (self.heard_s, self.reached_s) if each is not None), default=None)

    @property
    def stuck(self) -> tuple[Connection, ...]:
        """Those on which data is sent again and again."""
        return tuple(each for each in self.connections if _is_stuck(each))


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with the network."""

    kind: str
    """down (an interface), lost (nothing gets through) or large (only small packets do)."""
    routes: tuple[Route, ...] = ()
    links: tuple[tuple[NodeNetwork, LinkState], ...] = ()
    """Interfaces that are down or without a carrier."""
    sure: str = "medium"
    heard: bool = True
    """Large: something came over that pair of hosts meanwhile; else that only small packets ever passed tells it."""


def address_of(end: str) -> str:
    """Return the address of ``address:port``."""
    return end.rpartition(":")[0].strip("[]")


def _port_of(end: str) -> int:
    port = end.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _is_stuck(each: Connection) -> bool:
    waited = each.heard_s is None or each.heard_s >= STUCK_S or each.repeats > 2 * REPEATED
    return (
        each.unacknowledged > 0
        and each.repeats >= REPEATED
        and not each.moved
        and waited
        and each.state in SENDING
    )


def find_trouble(reading: Reading) -> Trouble | None:
    """Return what the network does wrong; None where nothing shows it, or where it cannot be told.

    Args:
        reading: of ranks that all wait.
    """
    networks = reading.look.network
    if not networks or reading.look.still_s < STUCK_S:
        return None
    routes = list(list_routes(networks))
    links = tuple((each, link) for each in networks for link in _find_down(each, routes))
    if links:
        behind = {(each.node, address) for each, link in links for address in link.addresses}
        through = [
            route
            for route in routes
            if any((route.node, address_of(each.near)) in behind for each in route.connections)
        ]
        return Trouble("down", tuple(through), links, "high")
    stuck = [route for route in routes if route.stuck]
    if not stuck or any(route.heard_s is None for route in stuck):
        return None
    large = [route for route in stuck if _loses_large(route)]
    if large:
        return Trouble("large", tuple(large), sure="high")
    silent = [route for route in stuck if (route.silent_s or 0.0) >= SILENT_S]
    if not silent:
        return None
    small = [route for route in silent if route.far_node is not None and passed_small_only(route)]
    if small and len(small) == len(silent):
        return Trouble("large", tuple(small), sure="medium", heard=False)
    known = all(route.far_node is not None for route in silent)
    return Trouble("lost", tuple(silent), sure="high" if known else "medium")


def list_routes(networks: Sequence[NodeNetwork]) -> Iterator[Route]:
    """Yield the routes from each node to each address of another host."""
    owners = {
        address: each.node for each in networks for link in each.interfaces for address in link.addresses
    }
    heard: dict[tuple[int, int], float] = {}
    for network in networks:
        for each in network.connections:
            far = owners.get(address_of(each.far))
            if far is not None and each.heard_s is not None:
                heard[network.node, far] = min(each.heard_s, heard.get((network.node, far), each.heard_s))
    for network in networks:
        own = {address for link in network.interfaces for address in link.addresses}
        found: dict[str, list[Connection]] = {}
        for each in network.connections:
            address = address_of(each.far)
            if is_loopback(address) or address in own:
                continue
            if address in owners or _port_of(each.far) >= SERVICES:
                found.setdefault(address, []).append(each)
        for address, connections in found.items():
            far = owners.get(address)
            known = [each.heard_s for each in connections if each.heard_s is not None]
            reached = heard.get((far, network.node)) if far is not None else None
            latest = min(known, default=None)
            yield Route(network.node, network.host, address, far, tuple(connections), latest, reached)


def _find_down(network: NodeNetwork, routes: Sequence[Route]) -> Iterator[LinkState]:
    """Yield interfaces that are down and over which connections of the job go."""
    used = {
        address_of(each.near) for route in routes if route.node == network.node for each in route.connections
    }
    for link in network.interfaces:
        if used & set(link.addresses) and (not link.up or link.carrier is False):
            yield link


def _loses_large(route: Route) -> bool:
    """Whether small packets pass both ways, and none of those that are sent again and again arrives.

    Only where as much as a full packet is under way: what is small would get through.
    """
    return (route.silent_s or 0.0) <= HEARD_S and any(
        each.segment_bytes is not None and each.unacknowledged >= each.segment_bytes // 2
        for each in route.stuck
    )


def passed_small_only(route: Route) -> bool:
    """Whether full packets are stuck, on connections over which not as much as one of them has ever passed."""
    return all(
        each.segment_bytes is not None
        and each.acked_bytes is not None
        and each.acked_segments
        and each.unacknowledged >= each.segment_bytes
        and each.acked_bytes < each.segment_bytes * max(1, each.acked_segments // 8)
        for each in route.stuck
    )


def name_far(route: Route, networks: Sequence[NodeNetwork], others: Mapping[int, str]) -> str:
    """Return the host at the far end.

    Args:
        route: to it.
        networks: of all nodes that were seen.
        others: hosts of the nodes of the job, as far as they are known.
    """
    found = next((each.host for each in networks if each.node == route.far_node), "")
    if not found and len(others) == 2:
        found = next((host for host in others.values() if host != route.host), "")
    return found or route.far


def owners_of(networks: Sequence[NodeNetwork]) -> dict[str, int]:
    """Return end -> rank of the connections of ranks."""
    return {
        each.near: each.rank
        for network in networks
        for each in network.connections
        if each.rank is not None and not is_loopback(address_of(each.near))
    } | {
        f"{network.node}/{each.near}": each.rank
        for network in networks
        for each in network.connections
        if each.rank is not None
    }


def between_ranks(networks: Sequence[NodeNetwork]) -> Iterator[tuple[Connection, int, int]]:
    """Yield the connections of ranks whose other end is another rank's, with both ranks."""
    owners = owners_of(networks)
    for network in networks:
        for each in network.connections:
            far = owners.get(each.far, owners.get(f"{network.node}/{each.far}"))
            if each.rank is not None and far is not None and far != each.rank:
                yield each, each.rank, far


def flows(reading: Reading) -> bool:
    """Whether data still passes between ranks that all wait: a transfer that takes long."""
    return any((each.passed_bytes or 0) >= FLOWS for each, _, _ in between_ranks(reading.look.network))


def describe_sockets(reading: Reading) -> list[str]:
    """Return what the connections of ranks show where nothing names a cause."""
    networks = reading.look.network
    if not networks:
        return []
    notes = [f"{each.host}: {each.note}" for each in networks if each.note]
    if all(each.source == "none" for each in networks):
        return notes or ["the connections of the ranks could not be read"]
    pairs = list(between_ranks(networks))
    told: list[str] = []
    for each, rank, far in pairs:
        if each.unread:
            told.append(f"rank {rank} has {format_bytes(each.unread)} of rank {far} that it does not read")
        elif each.unacknowledged:
            again = f", retransmitted {count_of(each.repeats, 'time')}" if each.repeats else ""
            told.append(
                f"rank {rank} has {format_bytes(each.unacknowledged)} for rank {far} that are "
                f"unacknowledged{again}"
            )
    if told:
        return [*told[:4], *([f"and {len(told) - 4} more such connections"] if len(told) > 4 else []), *notes]
    if not pairs:
        return [
            *notes,
            (
                "no TCP connections between the ranks; RDMA/NVLink/shared-memory traffic is not visible to "
                "ddpdoctor"
            ),
        ]
    ranks = {rank for _, rank, _ in pairs}
    idle = f"nothing is in flight on the {count_of(len(pairs), 'connection')} between ranks"
    if any(each.left_out for each in networks):
        idle += " that were saved"
    if len(ranks) < len(reading.places):
        idle += f" (of {count_of(len(ranks), 'rank')})"
    return [f"{idle}: the library or a rank is blocked, not the network", *notes]


def describe_route(route: Route, far: str) -> str:
    """Return what is stuck on the way to a host, for a sentence."""
    stuck = max(route.stuck, key=lambda each: (each.rank is not None, each.repeats), default=None)
    if stuck is None:
        return f"no data has passed between {route.host} and {far} for {route.silent_s or 0:.0f} s"
    who = f"rank {stuck.rank}" if stuck.rank is not None else "the agent"
    return (
        f"{who} on {route.host} has sent the same {format_bytes(stuck.unacknowledged)} to {far} "
        f"{count_of(stuck.repeats + 1, 'time')}, and none of it was acknowledged"
    )
