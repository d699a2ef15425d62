"""Asking NCCL's own service (RAS, NCCL 2.24 and later) how it sees a job that stands still.

It speaks lines of text on a TCP port of the host, as the client ``ncclras`` does (src/ras/client.cc of NCCL): both
sides say their protocol, the client may set a time limit, and ``STATUS`` is answered with a page until the connection
ends.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from ddpdoctor.evidence.sockets import RasAnswer
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.gather.network.netlink import in_network_of
from ddpdoctor.gather.scrub import scrub
from ddpdoctor.watch.keeping import write_below

DEFAULT = "localhost:28028"
"""NCCL_RAS_CLIENT_PORT of src/ras/ras_internal.h."""
PROTOCOL = 2
"""NCCL_RAS_CLIENT_PROTOCOL there; a service of another one is asked all the same, as NCCL's client does."""
LIMIT_S = 3.0
"""Seconds for the whole conversation: the job is about to be ended."""
WAIT_S = 2
"""What the service may wait for other processes; it gathers from all of them."""
MOST_BYTES = 1 << 20
MOST_LINES, LINE = 20, 300
FOLDER = "ras"
ENVIRON_BYTES = 1 << 20
MAPS_BYTES = 8 << 20
LIBRARIES = (b"libnccl.so", b"librccl.so")
SECTIONS = ("Errors", "Warnings")
_NAMED = re.compile(r"\bprocess (\d{1,10}) on node ([\w.:]{1,64})", re.I)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def ask_ras(look: Standstill, run: Path | None) -> RasAnswer | None:
    """Return what the service says of the job of a look; None where there is none, or the job does not use NCCL.

    Args:
        look: of the ranks of this node; those of others are not asked.
        run: the run directory, where the whole answer is kept; None where it is not.
    """
    own = [stand for stand in look.stands if stand.alive and _uses_nccl(stand)]
    here = socket.gethostname()
    own = [stand for stand in own if stand.host in ("", here)]
    if not own:
        return None
    given = _read_variables(own[0].pid)
    if given.get("NCCL_RAS_ENABLE") == "0":
        return None
    address = given.get("NCCL_RAS_ADDR") or DEFAULT
    shown = scrub(address)[:255]
    try:
        text = _talk_within(own[0].pid, address)
    except ConnectionRefusedError:
        if address == DEFAULT:
            return None  # an older NCCL, or one that was built without it
        return RasAnswer(shown, look.node, here, note="nothing is listening there")
    except (OSError, ValueError) as problem:
        return RasAnswer(shown, look.node, here, note=f"it did not respond: {problem}"[:LINE])
    if _is_others(text, own):
        return RasAnswer(
            shown, look.node, here, note="another job answers there: none of its processes is of this one"
        )
    kept = _keep(text, run) if run is not None else None
    return RasAnswer(shown, look.node, here, summarise(text), kept)


def add_ras(look: Standstill) -> Standstill:
    """Return a look at a job that nobody watches with what the service says of it, where there is one."""
    answer = ask_ras(look, None)
    return look if answer is None else replace(look, ras=(answer,))


def _uses_nccl(stand: Stand) -> bool:
    """Whether a rank said that it uses NCCL, or, where it writes nothing down, has loaded it."""
    if stand.backend is None and not stand.watched:
        return _loads_nccl(stand.pid)
    return stand.backend is not None and "nccl" in stand.backend.lower()


def _is_others(page: str, stands: Sequence[Stand]) -> bool:
    """Whether a page is about another job of this host, which came first to the port.

    It is where all processes that it names are of this host, and none is one of ours.
    """
    named = {(int(pid), node) for pid, node in _NAMED.findall(page)}
    own = {each.address for rows in psutil.net_if_addrs().values() for each in rows}
    if not named or any(node not in own and not node.startswith("127.") for _, node in named):
        return False
    return not any({pid for pid, _ in named} & _list_numbers(stand.pid) for stand in stands)


def _list_numbers(pid: int) -> set[int]:
    """Return the numbers of a process in all namespaces that it is in: in a container it knows itself by another."""
    try:
        with open(f"/proc/{pid}/status") as file:
            row = next((line for line in file if line.startswith("NSpid:")), "")
    except OSError:
        row = ""
    return {pid, *map(int, row.split()[1:])}


def _loads_nccl(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            maps = file.read(MAPS_BYTES)
    except OSError:
        return False
    return any(library in maps for library in LIBRARIES)


def _read_variables(pid: int) -> dict[str, str]:
    """Return the variables of a rank that concern the service, and no others."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            rows = file.read(ENVIRON_BYTES).split(b"\0")
    except OSError:
        return {}
    wanted = (b"NCCL_RAS_ADDR=", b"NCCL_RAS_ENABLE=")
    pairs = (row.decode(errors="replace").partition("=") for row in rows if row.startswith(wanted))
    return {name: value for name, _, value in pairs}


def _talk_within(pid: int, address: str) -> str:
    """Talk to the service in the network of a rank; a name that nobody resolves must not hold us up."""
    results: list[str] = []
    problems: list[Exception] = []

    def talk() -> None:
        try:
            results.append(in_network_of(pid, lambda: converse(address)))
        except (OSError, ValueError) as problem:
            problems.append(problem)

    thread = threading.Thread(target=talk, name="ddpdoctor-ras", daemon=True)
    thread.start()
    thread.join(LIMIT_S + 0.5)
    if results:
        return results[0]
    raise problems[0] if problems else TimeoutError(f"no end within {LIMIT_S:.0f} s")


def converse(address: str) -> str:
    """Ask for the status and return the page.

    Args:
        address: ``host:port``.

    Raises:
        OSError: nobody listens, or he does not answer in time.
        ValueError: it is no such service, or no such address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{address} is not host:port")
    deadline = time.monotonic() + LIMIT_S
    with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0) as peer:
        reader = _Reader(peer, deadline)
        peer.sendall(f"CLIENT PROTOCOL {PROTOCOL}\n".encode())
        hello = reader.line()
        if not hello.upper().startswith("SERVER PROTOCOL "):
            raise ValueError(
                f"the process listening there does not answer like NCCL's RAS service: {hello[:60]!r}"
            )
        peer.sendall(f"TIMEOUT {WAIT_S}\n".encode())
        if reader.line().upper() != "OK":
            raise ValueError("it did not accept a time limit")
        peer.sendall(b"STATUS\n")
        return reader.rest()


class _Reader:
    """Reads within a time limit and a number of bytes."""

    def __init__(self, peer: socket.socket, deadline: float) -> None:
        self._peer, self._deadline, self._data = peer, deadline, b""

    def _more(self) -> bool:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no end within {LIMIT_S:.0f} s")
        self._peer.settimeout(left)
        part = self._peer.recv(1 << 16)
        self._data += part
        return bool(part) and len(self._data) <= MOST_BYTES

    def line(self) -> str:
        """Return the next line.

        Raises:
            ConnectionResetError: there is none.
        """
        while b"\n" not in self._data:
            if not self._more():
                raise ConnectionResetError("it closed the connection")
        line, _, self._data = self._data.partition(b"\n")
        return line.decode(errors="replace").strip()

    def rest(self) -> str:
        """Return what comes until the end of the connection, or of the time: half a page tells something."""
        try:
            while self._more():
                pass
        except TimeoutError:
            if not self._data:
                raise
        return self._data[:MOST_BYTES].decode(errors="replace")


def summarise(page: str) -> tuple[str, ...]:
    """Return the lines of a page that say what is wrong: those of its errors and warnings."""
    rows = [_CONTROL.sub("", row).rstrip()[:LINE] for row in page.splitlines()]
    found: list[str] = []
    seen, section = False, ""
    for row, after in zip(rows, [*rows[1:], ""], strict=True):
        if after and set(after) == {"="}:
            section = row.strip()
            seen = seen or section in SECTIONS
        elif section in SECTIONS and row.strip() and set(row) != {"="}:
            found.append(scrub(row.strip()))
    if not seen:
        return ("its answer has neither errors nor warnings to read",)
    return tuple(found[:MOST_LINES]) or ("it reports no errors and no warnings",)


def _keep(page: str, run: Path) -> str | None:
    """Write the whole answer below the run directory; return its name there."""
    text = "\n".join(scrub(_CONTROL.sub("", row)) for row in page.splitlines())
    try:
        name = f"{FOLDER}/{len(list((run / FOLDER).glob('*.txt'))) + 1:04d}.txt"
        write_below(run, name, text.encode(errors="replace"))
    except OSError:
        return None
    return name
