"""The kernel's table of listening sockets, and which process holds one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpdoctor.gather.scrub import scrub_argv

PROC = Path("/proc")
_LISTEN = "0A"
"""State TCP_LISTEN of include/net/tcp_states.h as /proc/net/tcp prints it."""
MAX_COMMAND = 300
"""Characters of a command line that are kept: enough to recognise a job."""


def listening_inodes(proc: Path = PROC) -> dict[int, set[int]]:
    """Return port -> inodes of the sockets that listen on it in this network namespace (IPv4 and IPv6)."""
    found: dict[int, set[int]] = {}
    for port, state, inode in _read_table(proc):
        if state == _LISTEN:
            found.setdefault(port, set()).add(inode)
    return found


def connected_inodes(port: int, proc: Path = PROC) -> set[int]:
    """Return the inodes of sockets in any state whose own end is ``port``, e.g. an outgoing connection's."""
    return {inode for number, _, inode in _read_table(proc) if number == port and inode}


def _read_table(proc: Path) -> Iterator[tuple[int, str, int]]:
    """Yield local port, state and inode of each TCP socket."""
    for fields in read_rows(proc / "net"):
        yield int(fields[1].rpartition(":")[2], 16), fields[3], int(fields[9])


def read_rows(folder: Path) -> Iterator[list[str]]:
    """Yield the fields of each TCP socket (proc(5), /proc/net/tcp) of a folder; none where that is not there."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (folder / name).read_text().splitlines()[1:]
        except OSError:
            continue
        yield from (fields for fields in map(str.split, lines) if len(fields) > 9)


@dataclass(frozen=True, slots=True)
class Connection:
    """One TCP socket of a network namespace."""

    address: str
    port: int
    far_address: str
    far_port: int
    state: str
    """listen, connected, connecting or other."""
    inode: int


_STATES = {_LISTEN: "listen", "01": "connected", "02": "connecting"}
_MAPPED = "0000000000000000FFFF0000"
"""What stands before an IPv4 address in the table of IPv6 on little-endian machines."""


def list_connections(pid: int, proc: Path = PROC) -> Iterator[Connection]:
    """Yield the TCP sockets of the network namespace of a process."""
    for fields in read_rows(proc / str(pid) / "net"):
        near, far = (read_end(field) for field in fields[1:3])
        yield Connection(*near, *far, _STATES.get(fields[3], "other"), int(fields[9]))


def read_end(text: str) -> tuple[str, int]:
    """Return address and port of one end as the tables of /proc print it."""
    address, _, port = text.rpartition(":")
    address = address.removeprefix(_MAPPED)
    if len(address) == 8:
        address = ".".join(str(int(address[at : at + 2], 16)) for at in (6, 4, 2, 0))
    return address, int(port, 16)


def process_ids(proc: Path = PROC) -> list[int]:
    """Return the ids of all processes that can be seen."""
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return []


def open_targets(pid: int, proc: Path = PROC) -> list[str]:
    """Return what the file descriptors of a process point to; empty where that may not be read."""
    folder = proc / str(pid) / "fd"
    targets = []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        try:
            targets.append(os.readlink(folder / name))
        except OSError:
            continue
    return targets


def socket_inodes(targets: Iterable[str]) -> set[int]:
    """Return the inodes among `open_targets` that are sockets."""
    return {int(t[8:-1]) for t in targets if t.startswith("socket:[") and t[8:-1].isdigit()}


def find_holder(inodes: set[int], proc: Path = PROC) -> int | None:
    """Return the oldest process that holds one of these sockets, None where no such process can be seen."""
    if not inodes:
        return None
    return next((pid for pid in process_ids(proc) if socket_inodes(open_targets(pid, proc)) & inodes), None)


def command_of(pid: int, proc: Path = PROC) -> str | None:
    """Return the scrubbed command line of a process; its bare name in brackets where it has none."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
        if not raw.strip(b"\0"):
            return f"[{(proc / str(pid) / 'comm').read_text().strip()}]"
    except OSError:
        return None
    text = " ".join(scrub_argv(raw.rstrip(b"\0").decode(errors="replace").split("\0")))
    return text if len(text) <= MAX_COMMAND else text[: MAX_COMMAND - 1] + "…"
