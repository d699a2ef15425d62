"""Which TCP connections this process and this host have, read from /proc: nothing is sent."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_LISTEN, _ESTABLISHED = "0A", "01"
"""include/net/tcp_states.h"""
_MAPPED = "0000000000000000FFFF0000"
"""An IPv4 address in the table of IPv6, as the kernel prints it on little-endian machines."""
_AGAIN = 2
"""Times that the kernel sends again before it counts: once is an everyday loss of a packet."""
_ROWS = 100_000
"""Most rows of one table that are read; a busy host has a few thousand."""


def find_port(store: Any) -> int | None:
    """Return the port of a store, None where it is none of TCP."""
    for _ in range(8):
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    port = getattr(store, "port", None)
    return port if isinstance(port, int) and port > 0 else None


def listens(port: int) -> bool:
    """Tell whether this process listens on a port."""
    own = _own_sockets()
    return any(
        state == _LISTEN and inode in own and local.endswith(f":{port}")
        for local, _, state, inode, _ in _list_rows()
    )


def list_connections(port: int) -> list[str]:
    """Return this process's ends, as ``address:port``, of its connections to a port."""
    own = _own_sockets()
    return [
        local
        for local, remote, state, inode, _ in _list_rows()
        if state == _ESTABLISHED and inode in own and remote.endswith(f":{port}")
    ]


def find_connection(port: int) -> str | None:
    """Return this process's end of its connection to a port; None where it has none."""
    return next(iter(list_connections(port)), None)


def judge_connection(port: int, end: str | None = None) -> str:
    """Say how this process's connection to a port stands.

    Args:
        port: the far one.
        end: its own end of the one that is meant; any of them where that is not known.

    Returns:
        open, closed, or unacknowledged: the kernel has sent what is under way again, and nobody has confirmed it.
    """
    own = _own_sockets()
    found = "closed"
    for local, remote, state, inode, again in _list_rows():
        if end is not None and local != end:
            continue
        if state == _ESTABLISHED and inode in own and remote.endswith(f":{port}"):
            found = "unacknowledged" if again >= _AGAIN or found == "unacknowledged" else "open"
    return found


def list_peers(port: int) -> set[str] | None:
    """Return the far ends of the connections to a port of this host; None where that cannot be read."""
    rows = list(_list_rows())
    if not rows:
        return None
    return {
        remote for local, remote, state, _, _ in rows if state == _ESTABLISHED and local.endswith(f":{port}")
    }


def _own_sockets() -> set[str]:
    found = set()
    try:
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found


def _list_rows() -> Iterator[tuple[str, str, str, str, int]]:
    """Yield both ends, state, inode and repetitions of each TCP socket of this network (proc(5), /proc/net/tcp)."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}", encoding="ascii") as table:
                next(table, None)
                for number, row in enumerate(table):
                    fields = row.split()
                    if number > _ROWS:
                        break
                    if len(fields) > 9:
                        yield _format(fields[1]), _format(fields[2]), fields[3], fields[9], int(fields[6], 16)
        except OSError:
            continue


def _format(end: str) -> str:
    address, _, port = end.partition(":")
    if address.startswith(_MAPPED):
        address = address[len(_MAPPED) :]
    if len(address) == 8:
        address = ".".join(str(int(address[i : i + 2], 16)) for i in (6, 4, 2, 0))
    return f"{address}:{int(port, 16)}"
