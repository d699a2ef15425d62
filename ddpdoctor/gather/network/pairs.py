"""Opening TCP connections between nodes, and pushing bytes through them until some size gets stuck."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Sequence

import psutil

from ddpdoctor.evidence.network import Link
from ddpdoctor.gather.network.dns import look_up
from ddpdoctor.gather.network.interfaces import holder_of, list_interfaces

LARGE_SIZES = (1 << 10, 8 << 10, 64 << 10, 1 << 20)
"""Bytes pushed in one burst each: 1 KiB fits any path MTU in use, 8 KiB fills whole Ethernet segments (MTU
1500) but no jumbo frame of 9000, 64 KiB and 1 MiB fill those too."""
MAX_PUSH = 64 << 20
"""A listener refuses more than this in one push, so that a stray peer cannot keep it busy."""
MAX_PEERS = 256
"""Connections served at once; a listener of 16,384 nodes is dialled by a sample of about 28."""
PEER_LIMIT_S = 30.0
"""A peer that is silent for this long is dropped."""
PAIRS_LIMIT = 64
"""Up to this many nodes every ordered pair is tried: 4,032 connections, 63 from each node."""

_CHUNK = 1 << 16
_HEADER = struct.Struct("!4s32sQ")
_ANSWER = struct.Struct("!4s32sQId")
_MAGIC = b"ddd1"


class Listener:
    """Answers dials and counts bytes on one port of all addresses, for peers that know the run's token.

    Args:
        token: secret of this run; a peer without it is dropped without an answer.
        kind: what a dial to it shows: ephemeral or rendezvous.
        port: the port; 0 lets the kernel choose.

    Raises:
        OSError: the port cannot be had.
    """

    def __init__(self, token: str, *, kind: str = "ephemeral", port: int = 0) -> None:
        self.kind = kind
        self._token = token
        self._socket = _listen(port)
        self.port = int(self._socket.getsockname()[1])
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._peers: set[socket.socket] = set()
        self._slots = threading.BoundedSemaphore(MAX_PEERS)
        self._thread = threading.Thread(target=self._accept, name="ddpdoctor-listener", daemon=True)
        self._thread.start()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, drop all peers and free the port; may be called more than once."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept, which close alone does not
        self._socket.close()
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=5)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                peer, _ = self._socket.accept()
            except OSError:
                if self._closed.wait(0.01):  # closed, or out of file descriptors for a moment
                    return
                continue
            if not self._slots.acquire(blocking=False):
                peer.close()
                continue
            with self._lock:
                self._peers.add(peer)
            threading.Thread(target=self._serve, args=(peer,), name="ddpdoctor-peer", daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError), peer:
                peer.settimeout(PEER_LIMIT_S)
                self._answer(peer)
        finally:
            with self._lock:
                self._peers.discard(peer)
            self._slots.release()

    def _answer(self, peer: socket.socket) -> None:
        magic, proof, size = _HEADER.unpack(_receive(peer, _HEADER.size))
        if magic != _MAGIC or not hmac.compare_digest(proof, _prove(self._token, b"dial")) or size > MAX_PUSH:
            return
        checksum, left = 0, size
        while left:
            part = peer.recv(min(left, _CHUNK))
            if not part:
                return
            checksum = zlib.crc32(part, checksum)
            left -= len(part)
        peer.sendall(_ANSWER.pack(_MAGIC, _prove(self._token, b"answer"), size, checksum, time.time()))


def dial(
    source: int, target: int, address: str, port: int, kind: str, token: str | None, limit_s: float
) -> Link:
    """Open one connection and exchange a greeting; never raises.

    Args:
        source: this node.
        target: the node that listens.
        address: where it listens.
        port: its port.
        kind: rendezvous or ephemeral.
        token: the run's secret; None when something else listens there (torch's own store) and an open
            connection is all that can be asked for.
        limit_s: seconds for everything.
    """
    start = time.monotonic()
    error: str | None = None
    clock: tuple[float, float] | tuple[None, None] = (None, None)
    try:
        with _connect(address, port, limit_s) as peer:
            if token is not None:
                peer.settimeout(_left(start, limit_s))
                clock = _push(peer, token, b"")
    except (OSError, ValueError, UnicodeError) as problem:
        error = _describe(problem, limit_s)
    seconds = time.monotonic() - start
    return Link(
        source,
        target,
        kind,
        error is None,
        address,
        port,
        seconds,
        error,
        clock_offset_s=clock[0],
        clock_error_s=clock[1],
    )


def push_large(
    source: int,
    target: int,
    address: str,
    port: int,
    token: str,
    sizes: Sequence[int] = LARGE_SIZES,
    limit_s: float = 5.0,
) -> Link:
    """Push growing bursts to a `Listener`, each on a connection of its own; never raises.

    On a path that drops packets above some size (a path-MTU black hole), small messages and the handshake
    pass and the first burst that fills whole segments is never acknowledged. It stops at the first size that
    does not come through.

    Args:
        source: this node.
        target: the node that listens.
        address: where it listens.
        port: its port.
        token: the run's secret.
        sizes: bytes per burst, in growing order.
        limit_s: seconds for all sizes together.
    """
    start = time.monotonic()
    passed: int | None = None
    failed: int | None = None
    error: str | None = None
    mtu: int | None = None
    for size in sorted(sizes):
        try:
            with _connect(address, port, _left(start, limit_s)) as peer:
                mtu = mtu or _mtu_of(peer)
                peer.settimeout(_left(start, limit_s))
                _push(peer, token, os.urandom(size))
            passed = size
        except (OSError, ValueError, UnicodeError) as problem:
            failed, error = size, _describe(problem, limit_s)
            break
    seconds = time.monotonic() - start
    return Link(
        source, target, "large", error is None, address, port, seconds, error, passed, failed, mtu
    )  # fmt: skip


def choose_pairs(nodes: int, limit: int = PAIRS_LIMIT) -> list[tuple[int, int]]:
    """Return the ordered pairs (source, target) of nodes to try.

    All of them up to ``limit`` nodes. Above, each node dials those at distance 1, 2, 4, 8, … in both
    directions around the ring of node numbers: every node is tried as source and as target about
    2 log2(nodes) times, ring neighbours and tree partners (what collectives use) among them, and the choice
    is the same on all nodes.
    """
    if nodes <= limit:
        return [(i, j) for i in range(nodes) for j in range(nodes) if i != j]
    strides = [1 << power for power in range((nodes - 1).bit_length()) if 1 << power <= nodes // 2]
    pairs = {(i, (i + sign * step) % nodes) for i in range(nodes) for step in strides for sign in (1, -1)}
    return sorted(pairs)


def describe_sample(nodes: int, pairs: int) -> str:
    """Return words for how much was tried, e.g. ``1,536 of 16,256 ordered pairs``."""
    total = nodes * (nodes - 1)
    return f"all {total:,} ordered pairs" if pairs >= total else f"{pairs:,} of {total:,} ordered pairs"


def _listen(port: int) -> socket.socket:
    """Listen on all addresses, IPv4 through IPv6 where there is IPv6."""
    failure: OSError | None = None
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError as problem:
            failure = problem
            continue
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            made.bind(("", port))
            made.listen(MAX_PEERS)
            return made
        except OSError as problem:
            made.close()
            failure = problem
    raise failure or OSError("no address family to listen on")


def _connect(address: str, port: int, limit_s: float) -> socket.socket:
    start = time.monotonic()
    literal = look_up(address, limit_s)[0]  # create_connection would look a name up without a limit
    peer = socket.create_connection((literal, port), timeout=_left(start, limit_s))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Close with a reset: a burst that nobody acknowledges must not be resent for minutes by the kernel.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return peer


def _push(peer: socket.socket, token: str, data: bytes) -> tuple[float, float]:
    """Send a greeting and ``data`` in one burst and wait for the count and checksum.

    Returns:
        The listener's wall clock minus ours in seconds, and half the round trip, within which that is true
        (Cristian's algorithm).

    Raises:
        OSError: the connection broke, took too long, or something else than our listener answered.
    """
    before = time.time()
    peer.sendall(_HEADER.pack(_MAGIC, _prove(token, b"dial"), len(data)) + data)
    magic, proof, size, checksum, clock = _ANSWER.unpack(_receive(peer, _ANSWER.size))
    after = time.time()
    if magic != _MAGIC or not hmac.compare_digest(proof, _prove(token, b"answer")):
        raise ConnectionError("something other than ddpdoctor answered there")
    if size != len(data) or checksum != zlib.crc32(data):
        raise ConnectionError(f"{len(data)} bytes arrived corrupted")
    return clock - (before + after) / 2, (after - before) / 2


def _receive(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = peer.recv(count - len(data))
        if not part:
            raise ConnectionError("closed by the other side before it answered")
        data += part
    return data


def _prove(token: str, purpose: bytes) -> bytes:
    """Show that the token is known without sending it."""
    return hmac.new(token.encode(), purpose, hashlib.sha256).digest()


def _left(start: float, limit_s: float) -> float:
    """Return the seconds left.

    Raises:
        TimeoutError: none are.
    """
    left = limit_s - (time.monotonic() - start)
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _describe(problem: Exception, limit_s: float) -> str:
    if isinstance(problem, TimeoutError):
        return f"no answer within {limit_s:g} s"
    if isinstance(problem, OSError) and problem.errno is not None:
        return problem.strerror or str(problem)
    return str(problem) or type(problem).__name__


def _mtu_of(peer: socket.socket) -> int | None:
    """Return the MTU of the interface that the connection leaves by."""
    address = str(peer.getsockname()[0]).partition("%")[0].removeprefix("::ffff:")
    with contextlib.suppress(OSError, psutil.Error):
        interfaces = list_interfaces()
        name = holder_of(address, interfaces)
        return next((each.mtu for each in interfaces if each.name == name), None)
    return None
