"""Trying the rendezvous port as torch's store would, and naming who holds it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from ddpdoctor.evidence.network import PortProbe
from ddpdoctor.gather.network.dns import look_up
from ddpdoctor.gather.network.listeners import (
    PROC,
    command_of,
    connected_inodes,
    find_holder,
    listening_inodes,
)

_DENIED = frozenset({errno.EACCES, errno.EPERM})
_UNASSIGNABLE = frozenset({errno.EADDRNOTAVAIL, errno.ENODEV})


def probe_port(node: int, address: str | None, port: int, *, proc: Path = PROC) -> PortProbe:
    """Find out whether a store could listen on ``port`` here. Nothing stays bound; never raises.

    torch's TCPStore server listens on the wildcard address, IPv6 with IPv4 mapped first and plain IPv4 where
    that fails, with SO_REUSEADDR (``SocketListenOp`` in torch/csrc/distributed/c10d/socket.cpp; libuv's
    ``uv_tcp_bind`` sets the same). The same is done here, so connections of an earlier job in TIME_WAIT
    do not count as taken.

    Args:
        node: this node.
        address: the address that other nodes will dial; when given, it is also checked to be this node's.
        port: the port.
        proc: where the process file system is.
    """
    if not 1 <= port <= 65535:
        return PortProbe(node, port, "invalid", address, error=f"{port} is not a port: ports are 1-65535")
    if address is not None and (problem := _find_foreign(address)) is not None:
        return PortProbe(node, port, "unassignable", address, error=problem)
    failure = _try_listen(port)
    if failure is None:
        return PortProbe(node, port, "free", address)
    text = failure.strerror or str(failure)
    if failure.errno in _DENIED:
        return PortProbe(node, port, "denied", address, error=text)
    if failure.errno in _UNASSIGNABLE:
        return PortProbe(node, port, "unassignable", address, error=text)
    inodes = listening_inodes(proc).get(port) or connected_inodes(port, proc)
    holder = find_holder(inodes, proc)
    command = command_of(holder, proc) if holder is not None else None
    return PortProbe(node, port, "taken", address, text, holder, command)


def free_port() -> int:
    """Return a port that no socket held a moment ago, chosen by the kernel.

    Raises:
        OSError: no socket can be opened at all.
    """
    family = socket.AF_INET6 if _has_ipv6() else socket.AF_INET
    with _open_socket(family) as server:
        server.bind(("", 0))
        return int(server.getsockname()[1])


def unprivileged_start(proc: Path = PROC) -> int:
    """Return the first port that needs no rights; 1024 where the kernel does not say otherwise."""
    try:
        return int((proc / "sys/net/ipv4/ip_unprivileged_port_start").read_text())
    except (OSError, ValueError):
        return 1024  # ip(7): the default of ip_unprivileged_port_start


def _open_socket(family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made


def _has_ipv6() -> bool:
    try:
        with _open_socket(socket.AF_INET6) as probe:
            probe.bind(("", 0))
    except OSError:
        return False
    return True


def _try_listen(port: int) -> OSError | None:
    """Listen on the wildcard address as torch does; None when it worked, else the IPv4 error."""
    failure: OSError | None = None
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            with _open_socket(family) as server:
                server.bind(("", port))
                server.listen(1)
                return None
        except OSError as problem:
            failure = problem
    return failure


def _find_foreign(address: str) -> str | None:
    """Return why ``address`` is none of this node's, None when it is one (or a name that maps to one)."""
    try:
        candidates = look_up(address)
    except (OSError, UnicodeError, ValueError):
        return None  # that the name has no address is evidence of its own (`names.resolve`)
    problem_text = os.strerror(errno.EADDRNOTAVAIL)
    for candidate in candidates:
        family = socket.AF_INET6 if ":" in candidate else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((candidate, 0))
            return None
    return f"{', '.join(candidates)}: {problem_text}"
