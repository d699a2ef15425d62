"""Evidence of the network at a look at a job that does not get on: TCP connections and interfaces of each node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Connection:
    """One TCP connection of a rank, or of the process that started it, at the second sample of a look."""

    rank: int | None
    """None: of the launcher's agent, which talks to those of other nodes."""
    near: str
    """``address:port``."""
    far: str
    state: str = "established"
    """State of the connection as ss(8) spells it, with underscores: established, syn_sent, close_wait …"""
    unacknowledged: int = 0
    """Bytes that the other side has not confirmed, sent or still to be sent."""
    unread: int = 0
    """Bytes that came and that the process has not read."""
    repeats: int = 0
    """Times in a row that the kernel has sent the same data again, without an answer to it."""
    moved: bool = False
    """Whether something was confirmed, came, or was read between the samples."""
    passed_bytes: int | None = None
    """Bytes confirmed by the other side, or come from there, between the samples; None where the kernel does not
    tell."""
    heard_s: float | None = None
    """Since anything came from the other side, data or confirmation. This and the rest only where the kernel tells."""
    acked_bytes: int | None = None
    """Confirmed since the connection was made."""
    acked_segments: int | None = None
    received_bytes: int | None = None
    repeated: int | None = None
    """Segments that were sent again since it was made."""
    segment_bytes: int | None = None
    """Largest segment that it sends (MSS)."""
    path_mtu: int | None = None
    rtt_s: float | None = None


@dataclass(frozen=True, slots=True)
class LinkState:
    """A network interface of one node at a look."""

    name: str
    addresses: tuple[str, ...] = ()
    up: bool = True
    """Whether it is switched on."""
    carrier: bool | None = None
    """Whether it has a signal: the cable is in, the other end is on."""
    mtu: int | None = None
    downs: int | None = None
    """Times that the carrier was lost since the interface is there."""
    errors: int = 0
    """Packets with errors, received or sent."""
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """What one node's kernel shows of the job's connections."""

    node: int = 0
    host: str = ""
    connections: tuple[Connection, ...] = ()
    interfaces: tuple[LinkState, ...] = ()
    """Without the loopback."""
    source: str = "none"
    """sock_diag (everything), proc (no times and no counts of bytes) or none."""
    left_out: int = 0
    """Connections beyond the bound."""
    note: str | None = None
    """Why something could not be read."""


@dataclass(frozen=True, slots=True)
class RasAnswer:
    """What the RAS service of NCCL said of the job (NCCL 2.24 and later)."""

    address: str
    node: int = 0
    host: str = ""
    lines: tuple[str, ...] = ()
    """The lines of its answer that sum up: errors, warnings, communicators that differ."""
    file: str | None = None
    """The whole answer, below the run directory."""
    note: str | None = None
    """Why there is none."""
