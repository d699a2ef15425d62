"""The plan of one `check`: what the command line decided, in one object that travels to all ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ddpdoctor.evidence.facts import Launch
from ddpdoctor.evidence.stages import STAGES

DEFAULT_LIMITS: dict[str, float] = {
    "facts": 10.0,
    "smoke": 30.0,
    "tcp": 20.0,
    "rendezvous": 30.0,
    "backends": 30.0,
    "collectives": 30.0,
    "ddp": 30.0,
    "bandwidth": 30.0,
    "strategies": 60.0,
}
"""Seconds after which a stage is cut. On an idle laptop each takes under 1 s; 30 s is what a loaded 2-core
machine needed at 64 ranks, with room; the modules that the strategies need alone take
that long to import there."""


@dataclass(frozen=True, slots=True)
class Bound:
    """When a wait ends, and which limit ends it: a report has to name that one."""

    end: float
    """Value of `time.monotonic`."""
    limit_s: float
    """What the option says; ``--timeout`` counts from the start of the command."""
    option: str

    def left(self) -> float:
        """Return the seconds until the end, 0 after it."""
        return max(0.0, self.end - time.monotonic())

    def describe(self) -> str:
        """Return the option with its value, e.g. ``--timeout 10``."""
        return f"{self.option} {self.limit_s:g}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to launch and what to examine."""

    launch: Launch
    workdir: str
    """Private directory (0700) of this node's evidence files and sockets."""
    stages: tuple[str, ...] = STAGES
    limits: dict[str, float] = field(default_factory=lambda: dict(DEFAULT_LIMITS))
    join_timeout: float = 60.0
    """Seconds to wait for the other nodes at the rendezvous."""
    timeout: float | None = None
    """Seconds for the whole command."""
    until: float | None = None
    """Value of `time.monotonic`, the same in all processes of this machine, at which they are over."""
    devices: tuple[str, ...] = ()
    """Device of each local rank, e.g. ``("cuda:0", "cuda:1")``; empty means cpu."""
    full: bool = False
    """The long bandwidth sweep."""
    collectives: tuple[str, ...] = ()
    """Operations to sweep; empty means the default choice."""
    sizes: tuple[int, ...] = ()
    """Total bytes to sweep; empty means the default choice."""
    iterations: int | None = None
    model_limit: float = 60.0
    """Seconds for the user's factory and steps."""
    first_rank: int = 0
    """Global rank of this node's local rank 0."""
    node: int = 0
    """Index of this node."""
    placed: bool = True
    """Whether ``node`` and ``party`` are known: without --node-rank only the meeting can tell."""
    party: int = 0
    """Index of this process in the meeting: the node, or the rank under another launcher."""
    parties: int = 1
    leads: bool = True
    """This process speaks for its node: False for local ranks above 0 under another launcher."""
    external: bool = False
    """Another launcher started this process as one rank."""
    local_rank: int = 0
    """Under another launcher: this process's local rank."""
    local_world_size: int = 0
    """Under another launcher: ranks on this node."""
    told: bool = True
    """The launcher has told each rank its node and its place there; else those who come find it out."""
    agent_store: bool = False
    """The other launcher's agent already hosts the store at MASTER_ADDR:MASTER_PORT."""

    def runs(self, stage: str) -> bool:
        """Whether ``stage`` was selected."""
        return stage in self.stages

    def bound(self, limit_s: float, option: str, begin: float | None = None) -> Bound:
        """Return when a wait under ``limit_s`` ends, which may be by ``--timeout``.

        Args:
            limit_s: seconds for this wait alone.
            option: the option that sets them.
            begin: value of `time.monotonic` at which it began; None is now.
        """
        end = (time.monotonic() if begin is None else begin) + limit_s
        if self.until is not None and self.timeout is not None and self.until < end:
            return Bound(self.until, self.timeout, "--timeout")
        return Bound(end, limit_s, option)

    @property
    def meets(self) -> bool:
        """Whether there are others to meet."""
        return self.parties > 1

    @property
    def party_kind(self) -> str:
        """What a party of the meeting is."""
        return "rank" if self.external else "node"

    @property
    def hosting(self) -> bool:
        """Whether this process writes the merged report."""
        return self.placed and self.party == 0

    @property
    def spokesman(self) -> bool:
        """Whether this process prints for its node."""
        return self.leads
