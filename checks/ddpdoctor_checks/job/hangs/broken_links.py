"""Findings on the network between ranks that all wait: a link that is gone, and packets above some size that vanish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone

from ddpdoctor.evidence.sockets import NodeNetwork
from ddpdoctor.judge import EvidenceItem, Finding, Fix, Where
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import (
    capitalise,
    choose_form,
    count_of,
    format_age,
    join_words,
    name_set,
)
from ddpdoctor_checks.job.hangs.paths import (
    Route,
    Trouble,
    address_of,
    describe_route,
    find_trouble,
    name_far,
    passed_small_only,
)
from ddpdoctor_checks.job.hangs.reading import Reading, largest, name_call, name_line, ranks_of
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.waits import what_was_seen
from ddpdoctor_checks.network.links import advise_smaller_packets

MOST_ROUTES = 4
LINK, LARGE = "NET011", "NET014"


def find_network(reading: Reading, stage: str, others: Mapping[int, str]) -> Finding | None:
    """Return what the network does to ranks that all wait; None where it shows nothing, or nobody could look.

    Args:
        reading: of a look in which nobody is stuck for good and nobody is held by a rank outside of every call.
        stage: of the look.
        others: node -> host of the job, as far as it is known.
    """
    living = [place for place in reading.places if place.kind != "gone"]
    if not living or not all(place.waits for place in living):
        return None
    trouble = find_trouble(reading)
    if trouble is None:
        return None
    networks = reading.look.network
    if trouble.kind == "large":
        message, fix, details = _tell_large(trouble, networks, others)
    else:
        message, fix, details = _tell_lost(trouble, reading, others)
    pairs = _name_pairs(trouble.routes, networks, others)
    unnamed = {route.far for route in trouble.routes}
    hosts = dict.fromkeys(host for pair in pairs for host in pair if host not in unnamed)
    if trouble.kind == "down":
        hosts = dict.fromkeys(network.host for network, _ in trouble.links)
    return Finding(
        message=f"{message} {_say_waiting(living)}",
        code=LARGE if trouble.kind == "large" else LINK,
        victims=ranks_of(living),
        nodes=tuple(hosts),
        pairs=pairs,
        where=_list_places(living),
        evidence=(*what_was_seen(reading), *_quote(trouble, networks, others)),
        fix=fix,
        details={**details, "proof": False, "stage": stage, "network": trouble.kind},
        confidence=trouble.sure,
        decisive=True,
    )


def _list_places(living: Sequence[Place]) -> tuple[Where, ...]:
    sides: dict[tuple[str, int], list[Place]] = {}
    for place in living:
        if place.line is not None:
            sides.setdefault((place.line.file, place.line.line), []).append(place)
    return tuple(
        in_frame(line, ranks_of(side), "victim")
        for side in sides.values()
        if (line := side[0].line) is not None
    )


def _say_waiting(living: Sequence[Place]) -> str:
    side = largest(living)
    who = name_set(ranks_of(side))
    verb = choose_form(len(side), "waits", "wait")
    return (
        f"{capitalise(who)} {verb} in {name_call(side[0].call)}{name_line(side[0].line)}; no rank is the "
        "root cause."
    )


def _name_pairs(
    routes: Sequence[Route], networks: Sequence[NodeNetwork], others: Mapping[int, str]
) -> tuple[tuple[str, str], ...]:
    pairs = ((route.host, name_far(route, networks, others)) for route in routes)
    return tuple(dict.fromkeys((min(pair), max(pair)) for pair in pairs))


def _describe_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return join_words((f"{first} and {second}" for first, second in pairs), few=MOST_ROUTES)


def _tell_large(
    trouble: Trouble, networks: Sequence[NodeNetwork], others: Mapping[int, str]
) -> tuple[str, tuple[Fix, ...], dict[str, object]]:
    pairs = _name_pairs(trouble.routes, networks, others)
    first = trouble.routes[0]
    far = name_far(first, networks, others)
    mtus = _find_mtus(trouble.routes, networks)
    passed = max((_passed(route) for route in trouble.routes), default=0)
    failed = min((each.segment_bytes or 0 for route in trouble.routes for each in route.stuck), default=0)
    small = (
        f"small ones still arrive, the last {first.heard_s or 0:.1f} s ago"
        if trouble.heard
        else "the connection has never carried a full packet, and both hosts still reach the others"
    )
    shown = f" (MTU: {join_words(f'{host} {mtu}' for host, mtu in mtus.items())})" if mtus else ""
    where = _describe_pairs(pairs)
    message = (
        f"Large packets are dropped between {where}: {describe_route(first, far)}, while {small}{shown}."
    )
    interface = _interface_of(first, networks)
    return (
        message,
        advise_smaller_packets(first.host, first.far, interface, min(mtus.values(), default=1500)),
        {"bytes_passed": passed or None, "bytes_failed": failed or None, "mtu": mtus},
    )


def _passed(route: Route) -> int:
    """Return a number of bytes that a packet to a host had at least, and passed: the mean of what was confirmed."""
    means = [
        -(-each.acked_bytes // each.acked_segments)
        for each in route.connections
        if each.acked_bytes and each.acked_segments
    ]
    return max(means, default=0)


def _find_mtus(routes: Sequence[Route], networks: Sequence[NodeNetwork]) -> dict[str, int]:
    ends = {address_of(each.near) for route in routes for each in route.connections}
    ends |= {route.far for route in routes}
    return {
        network.host: link.mtu
        for network in networks
        for link in network.interfaces
        if link.mtu is not None and ends & set(link.addresses)
    }


def _interface_of(route: Route, networks: Sequence[NodeNetwork]) -> str:
    near = {address_of(each.near) for each in route.connections}
    return next(
        (
            link.name
            for network in networks
            if network.node == route.node
            for link in network.interfaces
            if near & set(link.addresses)
        ),
        "eth0",
    )


def _tell_lost(
    trouble: Trouble, reading: Reading, others: Mapping[int, str]
) -> tuple[str, tuple[Fix, ...], dict[str, object]]:
    networks = reading.look.network
    pairs = _name_pairs(trouble.routes, networks, others)
    quiet = [route.silent_s for route in trouble.routes if route.silent_s is not None]
    silent = min(quiet, default=None)
    clock = _read_clock(reading, silent) if silent is not None else None
    details: dict[str, object] = {
        "silent_s": round(silent, 1) if silent is not None else None,
        "since": clock,
    }
    since = f" No data has passed for {format_age(silent)}, since {clock}." if silent is not None else ""
    if trouble.links:
        told = join_words(
            f"{link.name} on {network.host} {'has lost its carrier' if link.up else 'is switched off'}"
            for network, link in trouble.links
        )
        network, link = trouble.links[0]
        details["interfaces"] = [[network.host, link.name] for network, link in trouble.links]
        return (
            f"The link is lost: the interface {told}.{since}",
            (
                Fix((
                    f"on {network.host}, check the cable, the switch port and the kernel log for the "
                    "interface"
                ),
                    f"ip -s link show {link.name}; dmesg -T | grep -i {link.name} | tail -20"),
            ),
            details,
        )  # fmt: skip
    first = trouble.routes[0]
    far = name_far(first, networks, others)
    live = all(route.far_node is not None for route in trouble.routes)
    doubt = (
        " The processes on both are still running."
        if live
        else " No connection was closed: the link is cut, or that host is without power."
    )
    if all(passed_small_only(route) for route in trouble.routes):
        doubt += " Full packets had never passed before: possibly only those are dropped."
    return (
        f"The link between {_describe_pairs(pairs)} is lost: {describe_route(first, far)}.{since}{doubt}",
        (
            Fix(f"on {first.host}, check whether the other host responds, and what the path loses",
                f"ip neigh show {first.far}; ping -c 3 {first.far}; ip -s link"),
            Fix("then check the firewalls on both", "sudo iptables -L -n -v; sudo nft list ruleset"),
        ),
        details,
    )  # fmt: skip


def _quote(
    trouble: Trouble, networks: Sequence[NodeNetwork], others: Mapping[int, str]
) -> list[EvidenceItem]:
    items = []
    for route in trouble.routes[:MOST_ROUTES]:
        far = name_far(route, networks, others)
        again = max((each.repeated or 0 for each in route.stuck), default=0)
        heard = (
            f"; the last packet from there arrived {route.heard_s:.1f} s ago"
            if route.heard_s is not None
            else ""
        )
        items.append(
            EvidenceItem(
                "socket",
                f"{route.host} to {far} ({route.far}): {count_of(len(route.connections), 'connection')}, "
                f"{len(route.stuck)} of them stuck, up to {again} packets retransmitted{heard}",
            )
        )
    for network, link in trouble.links:
        downs = f", {count_of(link.downs, 'loss', 'losses')} of the carrier so far" if link.downs else ""
        items.append(
            EvidenceItem(
                "interface",
                f"{link.name} on {network.host}: {'up' if link.up else 'down'}, "
                f"{'carrier' if link.carrier else 'no carrier'}{downs}",
            )
        )
    return items


def _read_clock(reading: Reading, silent_s: float) -> str:
    """Return when something passed last, by the clock of the node that looked."""
    wall = datetime.fromtimestamp(reading.look.at.wall_ns / 1e9, timezone.utc)
    return f"{wall - timedelta(seconds=silent_s):%H:%M:%S} UTC"
