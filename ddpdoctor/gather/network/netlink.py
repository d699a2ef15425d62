"""The kernel's own account of TCP connections and interfaces, over netlink: nothing is sent to anybody else.

Constants and layouts are those of include/uapi/linux: netlink.h, inet_diag.h, tcp.h, rtnetlink.h, if_link.h.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ddpdoctor.evidence.sockets import LinkState
from ddpdoctor.gather.network.listeners import PROC, read_end, read_rows

T = TypeVar("T")

ANSWER_S = 1.0
"""The kernel answers a dump of some thousand sockets within milliseconds."""
MOST_SOCKETS = 100_000
"""Most sockets of one network that are read; a busy host has a few thousand."""
_NEWNET = 0x40000000
_HEADER = struct.Struct("=IHHII")
_DUMP = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP"""
_ERROR, _DONE = 2, 3
_ROUTE, _SOCK_DIAG = 0, 4
_BY_FAMILY, _GETLINK, _GETADDR = 20, 18, 22
_INFO = 2
"""INET_DIAG_INFO, and the bit before it asks for it."""
STATES = ("", "established", "syn_sent", "syn_recv", "fin_wait1", "fin_wait2", "time_wait", "close", "close_wait",
          "last_ack", "listen", "closing", "new_syn_recv")  # fmt: skip
"""include/net/tcp_states.h"""
_LOOPBACK, _UP = 0x8, 0x1
"""Flags of an interface."""


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One TCP socket of a network namespace."""

    inode: int
    near: tuple[str, int]
    far: tuple[str, int]
    state: str
    send_queue: int
    receive_queue: int
    repeats: int
    """Times in a row that data was sent again."""
    info: TcpInfo | None = None


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """What the kernel counts of a connection; None where it is older than the field."""

    segment_bytes: int
    path_mtu: int
    rtt_s: float
    heard_s: float
    repeated: int
    acked_bytes: int | None
    received_bytes: int | None
    delivered: int | None


def in_network_of(pid: int, call: Callable[[], T]) -> T:
    """Return what a call returns in the network namespace of a process, in a thread of its own where that is another.

    Raises:
        OSError: it is gone, or its network may not be entered.
    """
    theirs = f"/proc/{pid}/ns/net"
    if os.stat(theirs).st_ino == os.stat("/proc/self/ns/net").st_ino:
        return call()
    results: list[T] = []
    problems: list[OSError] = []

    def enter() -> None:
        try:
            with open(theirs, "rb") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEWNET):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            results.append(call())
        except OSError as problem:
            problems.append(problem)

    thread = threading.Thread(target=enter, name="ddpdoctor-network", daemon=True)
    thread.start()
    thread.join(3 * ANSWER_S)
    if not results:
        raise problems[0] if problems else TimeoutError("the kernel did not answer")
    return results[0]


def _ask(protocol: int, kind: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of each message of a dump.

    Raises:
        OSError: the kernel refuses, or does not answer.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, protocol) as asking:
        asking.settimeout(ANSWER_S)
        asking.send(_HEADER.pack(_HEADER.size + len(body), kind, _DUMP, 1, 0) + body)
        while True:
            data = asking.recv(1 << 16)
            at = 0
            while at + _HEADER.size <= len(data):
                length, found, _, _, _ = _HEADER.unpack_from(data, at)
                if found == _DONE or length < _HEADER.size:
                    return
                if found == _ERROR:
                    number = -struct.unpack_from("=i", data, at + _HEADER.size)[0]
                    raise OSError(number, os.strerror(number))
                yield found, data[at + _HEADER.size : at + length]
                at += (length + 3) & ~3
            if not data:
                return


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += (length + 3) & ~3


def list_tcp() -> list[TcpSocket]:
    """Return the TCP sockets of this thread's network, without those that listen.

    Raises:
        OSError: the kernel does not tell.
    """
    found: list[TcpSocket] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        states = 0xFFF & ~(1 << STATES.index("listen"))
        body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, states) + bytes(48)
        for _, data in _ask(_SOCK_DIAG, _BY_FAMILY, body):
            if len(data) >= 72 and len(found) < MOST_SOCKETS:
                found.append(_read_socket(data))
    return found


def _read_socket(data: bytes) -> TcpSocket:
    """Read an inet_diag_msg."""
    family, state, timer, repeats = struct.unpack_from("=BBBB", data)
    ports = struct.unpack_from(">HH", data, 4)
    near, far = (_read_address(family, data[at : at + 16]) for at in (8, 24))
    _, unread, queued, _, inode = struct.unpack_from("=IIIII", data, 52)
    info = next((value for kind, value in _attributes(data[72:]) if kind == _INFO), b"")
    again = repeats if timer == 1 else 0  # 1: the timer of repetitions; others count probes
    return TcpSocket(
        inode, (near, ports[0]), (far, ports[1]), _name_state(state), queued, unread, again, _read_info(info)
    )


def _name_state(number: int) -> str:
    return STATES[number] if number < len(STATES) else str(number)


def _read_address(family: int, data: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[:4])
    return socket.inet_ntop(socket.AF_INET6, data).removeprefix("::ffff:")


def _read_info(data: bytes) -> TcpInfo | None:
    """Read a struct tcp_info; newer kernels append fields."""
    if len(data) < 104:
        return None

    def word(at: int) -> int:
        return int(struct.unpack_from("=I", data, at)[0])

    def long(at: int) -> int | None:
        return int(struct.unpack_from("=Q", data, at)[0]) if len(data) >= at + 8 else None

    return TcpInfo(
        segment_bytes=word(16),
        path_mtu=word(60),
        rtt_s=word(68) / 1e6,
        heard_s=min(word(52), word(56)) / 1e3,
        repeated=word(100),
        acked_bytes=long(120),
        received_bytes=long(128),
        delivered=word(192) if len(data) >= 196 else None,
    )


def list_links() -> tuple[LinkState, ...]:
    """Return the interfaces of this thread's network but the loopback.

    Raises:
        OSError: the kernel does not tell.
    """
    addresses: dict[int, list[str]] = {}
    for _, data in _ask(_ROUTE, _GETADDR, bytes(8)):
        family, _, _, _, index = struct.unpack_from("=BBBBI", data)
        if family not in (socket.AF_INET, socket.AF_INET6):
            continue
        given = dict(_attributes(data[8:]))
        raw = given.get(2) or given.get(1)  # IFA_LOCAL, IFA_ADDRESS
        if raw and len(raw) in (4, 16):
            addresses.setdefault(index, []).append(_read_address(family, raw.ljust(16, b"\0")))
    found = []
    for _, data in _ask(_ROUTE, _GETLINK, bytes(16)):
        _, _, _, index, flags, _ = struct.unpack_from("=BBHiII", data)
        if not flags & _LOOPBACK:
            found.append(_read_link(dict(_attributes(data[16:])), flags, tuple(addresses.get(index, ()))))
    return tuple(found)


def _read_link(given: dict[int, bytes], flags: int, addresses: tuple[str, ...]) -> LinkState:
    def word(kind: int) -> int | None:
        data = given.get(kind, b"")
        return int(struct.unpack_from("=I", data)[0]) if len(data) >= 4 else None

    stats = given.get(23, b"")  # IFLA_STATS64: packets and bytes, then errors and drops of both ways
    counts = struct.unpack_from("=8Q", stats) if len(stats) >= 64 else (0,) * 8
    carrier = given.get(33)
    return LinkState(
        name=given.get(3, b"").rstrip(b"\0").decode(errors="replace"),
        addresses=addresses,
        up=bool(flags & _UP),
        carrier=bool(carrier[0]) if carrier else None,
        mtu=word(4),
        downs=word(48),
        errors=counts[4] + counts[5],
        dropped=counts[6] + counts[7],
    )


def list_tcp_from_proc(pid: int, proc: Path = PROC) -> list[TcpSocket]:
    """Return the same from the tables of /proc, which tell less (proc(5), /proc/net/tcp).

    Raises:
        OSError: they cannot be read.
    """
    folder = proc / str(pid) / "net"
    (folder / "tcp").stat()
    found = []
    for fields in itertools.islice(read_rows(folder), MOST_SOCKETS):
        state = _name_state(int(fields[3], 16))
        if state == "listen":
            continue
        queued, _, unread = fields[4].partition(":")
        found.append(
            TcpSocket(
                int(fields[9]),
                read_end(fields[1]),
                read_end(fields[2]),
                state,
                int(queued, 16),
                int(unread, 16),
                int(fields[6], 16) if fields[5].startswith("01:") else 0,
            )
        )
    return found
