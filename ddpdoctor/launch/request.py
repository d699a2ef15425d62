"""What the command line asks of `check`, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from ddpdoctor.evidence import DEFAULT_STAGES, Evidence
from ddpdoctor.evidence.gatherers import GathererFailure

MAX_NPROC = 1024
"""Ranks on one node: the largest that anyone is known to start is a few hundred; more is a typing error."""
NPROC_WORDS = ("auto", "gpu", "cpu")
"""The words that torchrun's --nproc-per-node takes instead of a number."""
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
"""Backends that torch itself knows (torch.distributed.Backend.backend_list without fake and undefined)."""
RDZV_BACKENDS = ("c10d", "static")
"""Rendezvous backends of torchrun that need no service of their own, as etcd does."""
SWEEP_OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
)
"""Operations that the bandwidth sweep can measure: those for which nccl-tests defines a bus bandwidth."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The validated options of `check`; None and empty mean that nothing was said."""

    nproc: int | str | None = None
    """Ranks on this node: a number, or one of `NPROC_WORDS`."""
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    """``host`` or ``host:port``; a port, where there is one, is valid."""
    rdzv_id: str | None = None
    local_addr: str | None = None
    backend: str | None = None
    """One of `BACKENDS`."""
    model: str | None = None
    """``package.module:factory``."""
    stages: tuple[str, ...] = DEFAULT_STAGES
    """Selected stages, in order."""
    strategies: tuple[str, ...] = ()
    """Selected strategies of `STRATEGIES`; empty means all, where the stage is selected."""
    full: bool = False
    """The long bandwidth sweep."""
    collectives: tuple[str, ...] = ()
    """Selected collectives of `SWEEP_OPERATIONS`."""
    sizes: tuple[int, ...] = ()
    """Total bytes, ascending."""
    iterations: int | None = None
    join_timeout: float | None = None
    """Seconds to wait for the other nodes."""
    limits: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds, where the user set them."""
    timeout: float | None = None
    """Seconds for the whole command."""
    run_dir: str | None = None

    def explicit_world(self) -> bool:
        """Whether the command line itself says anything about the world to launch."""
        return any(
            value is not None
            for value in (self.nproc, self.nnodes, self.node_rank, self.master_addr, self.rdzv_endpoint)
        )


class Progress(Protocol):
    """Where `check` says what it is doing."""

    def stage(self, name: str, limit_s: float) -> None:
        """A stage begins; it is cut after ``limit_s`` seconds."""
        ...

    def note(self, text: str) -> None:
        """What is being done or waited for inside the stage."""
        ...

    def close(self) -> None:
        """Nothing more comes; the line is cleared. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What one `check` saw on this node."""

    evidence: Evidence
    started_at: datetime
    """When the check started, with a time zone."""
    duration_s: float
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds per stage and of ddpdoctor's own phases."""
    interrupted: str | None = None
    """Name of the signal that ended the command early."""
    node: int | None = 0
    """This node's number; None where only the meeting could tell and it did not come about."""
    own: Evidence | None = None
    """What this node alone saw, where ``evidence`` is that of all nodes."""
    gatherer_failures: tuple[GathererFailure, ...] = ()
    """Gatherers of third parties that gave nothing usable on this node."""
    hosting: bool = True
    """This node writes the merged report."""
    spokesman: bool = True
    """This process prints for its node; False in all but one rank of a node under another launcher."""
    prints: bool = True
    """False where another node prints what all have seen into the same output."""
