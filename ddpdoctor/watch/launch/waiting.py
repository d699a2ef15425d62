"""A rendezvous that does not come about: torchrun says nothing while it waits for other nodes, so we do.

Read from beside: the agent's own word that it began, and the kernel's table of its connections. Nothing is sent. How
long it takes shows no more than that: what is said is what these two show. On one node there is nobody to wait for, and
a launcher that is slow there is only slow.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ddpdoctor.gather.network.listeners import Connection, list_connections, open_targets, socket_inodes
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.commandline import Split, find_torchrun, read_torchrun

SAID_AT_S = (20.0, 120.0, 600.0)
"""Seconds in the rendezvous after which that is said. On nodes that are started together it takes well under a second;
schedulers start them some seconds apart."""
LOOK_S = 2.0
AGENT_S = 300.0
"""After which a command that has no elastic agent so far is taken for one that needs none."""
HEAD_BYTES = 16_384
"""Bytes of a process's events that are read: the first says what it is, and an agent's that it is one comes soon
after."""
_TORCHRUN = re.compile(rb'"argv":\[[^][]{0,4000}"(?:torch\.distributed\.run|[^"]{0,400}/torchrun)"')
STATIC_PORT, C10D_PORT = 29500, 29400
"""torch/distributed/run.py, --master-port; c10d_rendezvous_backend.py, DEFAULT_PORT."""


class RendezvousWatch:
    """Says when no rank has been started for long although an agent has."""

    def __init__(
        self,
        processes: Path,
        split: Split,
        say: Callable[[str], None],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Watch a run.

        Args:
            processes: where its processes write their events.
            split: what was launched.
            say: prints a sentence.
            environ: of the launcher, for torchrun's PET_ variables.
        """
        self._processes, self._say = processes, say
        self._nodes, self._host, self._port = _read_options(split, environ)
        self._known: set[str] = set()
        self._agents: dict[int, float] = {}
        self._next = 0.0
        self._said = 0
        self._over = False
        self._until = time.time() + AGENT_S

    def look(self, now: float | None = None) -> None:
        """Look, if it is time for that; never raises."""
        now = time.time() if now is None else now
        if self._over or now < self._next:
            return
        self._next = now + LOOK_S
        try:
            self._over = self._read()
            begun = min(self._agents.values(), default=now)
            if not self._over and self._has_others() and now - begun >= SAID_AT_S[self._said]:
                self._said += 1
                self._say(self._describe(now - begun))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            self._over = True
        self._over = self._over or self._said == len(SAID_AT_S) or (not self._agents and now > self._until)

    def _read(self) -> bool:
        """Look for agents; return whether a rank has been started."""
        for file in self._processes.glob("*.jsonl"):
            if file.name in self._known:
                continue
            with open_regular(file) as stream:
                head = stream.read(HEAD_BYTES)
            if b'"role":"rank"' in head:
                return True
            begun = _read_begin(head)
            if begun is not None:
                self._known.add(file.name)
                self._agents[int(file.name.partition("-")[0])] = begun
        return False

    def _has_others(self) -> bool:
        """Whether the options name more than this node: several, or a host that is not every machine's own."""
        return self._nodes is not None or (self._host is not None and not _is_loopback(self._host))

    def _describe(self, waited: float) -> str:
        since = f"{waited:.0f} s" if waited < 120 else f"{waited / 60:.0f} min"
        nodes = f" of {self._nodes} nodes" if self._nodes else ""
        own = f"no rank has been started since torchrun was ready for the rendezvous{nodes} {since} ago"
        return f"{own}; {self._describe_connections()}"

    def _describe_connections(self) -> str:
        pid = next(iter(self._agents))
        own = socket_inodes(open_targets(pid))
        mine = [each for each in list_connections(pid) if each.inode in own]
        place = f"{self._host or 'the rendezvous'}:{self._port}"
        if any(each.state == "listen" and each.port == self._port for each in mine):
            return self._describe_peers(mine)
        out = {each.state for each in mine if each.far_port == self._port}
        if "connected" in out:
            return (
                f"it is connected to {place}, and a node is missing; is the command running on all of them?"
            )
        if "connecting" in out:
            return f"{place} does not respond; is that host up, and does a firewall allow port {self._port}?"
        return f"it has no connection to {place} now; is the command running on the rendezvous host?"

    def _describe_peers(self, mine: list[Connection]) -> str:
        ours = [each for each in mine if each.port == self._port and each.state == "connected"]
        local = {each.address for each in ours}
        peers = sorted({each.far_address for each in ours} - local)
        if not peers:
            none = f"no other node has connected to port {self._port} here"
            return f"{none}; is the command running on them, with this address?"
        return f"connected to port {self._port} here so far: {', '.join(peers[:8])}{' …' if len(peers) > 8 else ''}"


def _is_loopback(host: str) -> bool:
    bare = host.strip("[]")
    return bare in ("localhost", "::1") or bare.startswith("127.")


def _read_begin(head: bytes) -> float | None:
    """Return when a process became an elastic agent, or, for torchrun, when it had imported torch.

    With c10d torchrun connects to the store before it makes its agent.
    """
    for line in head.splitlines():
        agent = b'"how":"elastic agent"' in line
        if agent or (b'"event":"torch"' in line and _TORCHRUN.search(head)):
            return float(json.loads(line)["wall_ns"]) / 1e9
    return None


def _read_options(split: Split, environ: Mapping[str, str]) -> tuple[str | None, str | None, int]:
    """Return nodes, host and port of the rendezvous, as far as the options say."""
    words = find_torchrun(split.target) if split.is_command else split.torchrun
    given = read_torchrun(words or (), environ)
    nodes = given.get("nnodes")
    endpoint = given.get("rdzv-endpoint", "")
    host, _, port = endpoint.rpartition(":") if ":" in endpoint else (endpoint, "", "")
    if given.get("rdzv-backend", "static") == "static" and not endpoint:
        host, port = given.get("master-addr", ""), given.get("master-port", "")
    default = STATIC_PORT if given.get("rdzv-backend", "static") == "static" else C10D_PORT
    number = int(port) if port.isdecimal() and len(port) < 6 else default
    return (nodes if nodes not in (None, "1", "1:1") else None), host or None, number
