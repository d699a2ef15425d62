"""Which address and names this node has for the others, and whether an endpoint is this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import Any


def reachable_address(facts: dict[str, Any]) -> str:
    """The address to dial: the one that gloo would publish, or the real one where that is loopback."""
    advertised = facts.get("advertised")
    if advertised and not ipaddress.ip_address(advertised.partition("%")[0]).is_loopback:
        return str(advertised)
    return str(facts.get("route_address") or advertised or socket.gethostname())


def own_names() -> tuple[str, ...]:
    """Return the names and addresses that this machine knows itself by."""
    names = [socket.gethostname(), socket.getfqdn()]
    with contextlib.suppress(OSError):
        names += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)]
    return tuple(dict.fromkeys(names))


def matches_this_machine(host: str) -> bool:
    """Ask torch's own rule where it can be found, so that what is reported is what torchrun would do."""
    from torch.distributed.elastic.rendezvous import utils

    rule = getattr(utils, "_matches_machine_hostname", None)
    if rule is None:
        return host in ("localhost", *own_names())
    try:
        return bool(rule(host))
    except OSError:
        return False
