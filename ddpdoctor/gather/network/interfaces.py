"""Network interfaces, the route to the master, and the address that gloo will publish."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddpdoctor.evidence.facts import Interface
from ddpdoctor.gather.network.dns import look_up

LOOPBACK = "127.0.0.1"
_ANY_PORT = 9
"""UDP discard (RFC 863): only names a destination, since connecting a UDP socket sends nothing."""


def list_interfaces() -> tuple[Interface, ...]:
    """Return the interfaces of this network namespace with their IPv4 and IPv6 addresses, in kernel order."""
    try:
        addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    except (OSError, psutil.Error):
        return ()
    found = []
    for name in sorted({*addresses, *states}, key=lambda each: (_index(each), each)):
        state = states.get(name)
        own = tuple(
            address.address.partition("%")[0]
            for address in addresses.get(name, ())
            if address.family in (socket.AF_INET, socket.AF_INET6)
        )
        found.append(
            Interface(
                name,
                own,
                up=state.isup if state else True,
                loopback=_is_loopback(name, own),
                mtu=state.mtu if state and state.mtu > 0 else None,
                speed_mbps=_positive(state.speed if state else None),
            )
        )
    return tuple(found)


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 1 << 31


def _positive(speed: int | None) -> int | None:
    """Drivers that do not know their speed report 0, -1 or 65535 (ethtool's SPEED_UNKNOWN as 16 bits)."""
    return speed if speed is not None and 0 < speed < 2**31 - 1 and speed != 65535 else None


def _is_loopback(name: str, addresses: Sequence[str]) -> bool:
    try:
        flags = int(Path(f"/sys/class/net/{name}/flags").read_text(), 16)
    except (OSError, ValueError):
        return any(is_loopback(address) for address in addresses)
    return bool(flags & 0x8)  # IFF_LOOPBACK, linux/if.h


def is_loopback(address: str) -> bool:
    """Whether an address is of 127.0.0.0/8 or ::1."""
    return address.startswith("127.") or address == "::1" or address.startswith("::ffff:127.")


def holder_of(address: str | None, interfaces: Sequence[Interface]) -> str | None:
    """Return the interface that has ``address``; any of 127.0.0.0/8 belongs to the loopback interface."""
    if address is None:
        return None
    exact = next((each.name for each in interfaces if address in each.addresses), None)
    if exact is None and is_loopback(address):
        return next((each.name for each in interfaces if each.loopback), None)
    return exact


def find_route(target: str) -> str | None:
    """Return the source address that the kernel picks towards the literal address ``target``.

    A UDP socket is connected and asked for its own end; no packet leaves (udp(7)). None without a route.
    """
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with contextlib.suppress(OSError, ValueError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((target, _ANY_PORT))
        return str(probe.getsockname()[0]).partition("%")[0]
    return None


@dataclass(frozen=True, slots=True)
class Advertised:
    """The address that a rank's gloo listens on and publishes to its peers."""

    address: str | None
    interface: str | None
    error: str | None = None


def find_advertised(
    environ: Mapping[str, str], interfaces: Sequence[Interface], name_addresses: Sequence[str]
) -> Advertised:
    """Work out what gloo publishes from this node with the present settings.

    As torch does it (``ProcessGroupGloo::createProcessGroupGloo`` and ``createDefaultDevice`` in
    torch/csrc/distributed/c10d; ``lookupAddrForIface`` and ``lookupAddrForHostname`` in
    gloo/transport/tcp/device.cc): with GLOO_SOCKET_IFNAME, a comma-separated list, the first address of each
    named interface; else the first address that the own host name resolves to and that can be bound; else
    the loopback address. The first device is what a plain two-rank group uses, so it is the one told here.

    Args:
        environ: variables of the ranks.
        interfaces: what `list_interfaces` gave.
        name_addresses: what the own host name resolves to, in the resolver's order.
    """
    asked = environ.get("GLOO_SOCKET_IFNAME", "")
    if len(asked) > 1:  # torch ignores a value of one character
        name = asked.split(",")[0]
        chosen = next((each for each in interfaces if each.name == name), None)
        if chosen is None or not chosen.addresses:
            return Advertised(None, name, f"Unable to find address for: {name}")
        return Advertised(chosen.addresses[0], name)
    address = next((each for each in name_addresses if _can_bind(each)), LOOPBACK)
    return Advertised(address, holder_of(address, interfaces))


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def route_to(master: str | None, limit_s: float) -> str | None:
    """Return the source address of the route to the master, None where it has no address or no route.

    Args:
        master: host name or address.
        limit_s: seconds that the name look-up may take.
    """
    if not master:
        return None
    try:
        targets = look_up(master, limit_s)
    except (OSError, UnicodeError, ValueError):
        return None
    return next((source for target in targets if (source := find_route(target)) is not None), None)
