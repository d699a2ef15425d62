"""What is known of the world of one node while it runs, and why it was ended before its time."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpdoctor.evidence import Library, RankExit
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.traces import keep_last_words
from ddpdoctor.launch.world.rank_states import RankState

WORLD_STAGES = ("rendezvous", "backends", "collectives", "ddp", "bandwidth", "strategies")


@dataclass(slots=True)
class Ending:
    """Why the world was ended before its time."""

    stage: str
    status: str
    """cut or failed; unreached for an interruption."""
    reason: str
    limit_s: float | None = None
    """Where another limit than that of the stage ended it."""
    limit_option: str | None = None
    at: float = field(default_factory=time.monotonic)
    stacks: tuple[Any, ...] = ()
    stacks_note: str | None = None


@dataclass(slots=True)
class World:
    """What is known of the world of this node."""

    plan: Plan
    """Plan with the place that the meeting gives to this node."""
    started: float = 0.0
    """`time.monotonic` value of the start of the agent."""
    ranks: dict[int, RankState] = field(default_factory=dict)
    rows: list[tuple[str, Any]] = field(default_factory=list)
    """Evidence of the agent itself."""
    exits: list[RankExit] = field(default_factory=list)
    broken: str | None = None
    """What the agent or its rendezvous raised."""
    begun: float | None = None
    ended: float | None = None
    agent_gone: bool = False
    agent_exit: int | None = None
    """Its exit code, or minus the signal that it died of."""
    blocked: str | None = None
    """Why the ranks were never launched."""
    merged: str | None = None
    """File with the evidence of all nodes, once the exchange brought it."""
    others: str | None = None
    """What another node said when it ended the run."""
    met: bool = False
    """The meeting has ended, well or not: from then on the agent listens to the supervisor."""
    exchanged: bool = False
    libraries: tuple[Library, ...] = ()
    """Communication libraries that are mapped into a rank, read once the group has formed."""

    def take_place(self, event: dict[str, Any]) -> None:
        """Take in what only the meeting could tell: this node's number, its ranks, the size of the world."""
        launch = dataclasses.replace(
            self.plan.launch, world_size=int(event["world_size"]), nnodes=int(event["nnodes"])
        )
        if self.plan.external:
            launch = dataclasses.replace(launch, node_rank=int(event["node"]))
        self.plan = dataclasses.replace(
            self.plan,
            node=int(event["node"]),
            party=int(event["party"]),
            placed=True,
            leads=bool(event["leads"]),
            first_rank=int(event["first_rank"]),
            launch=launch,
        )

    def note_exit(self, event: dict[str, Any]) -> None:
        """Take in how the elastic agent says that a rank has ended."""
        rank = int(event["rank"])
        state = self.ranks.get(rank)
        if state is not None and state.failed is not None:
            return  # it said itself what was wrong and then left with 1
        logs = sorted(
            Path(self.plan.workdir, "logs").glob(f"*/attempt_0/{rank - self.plan.first_rank}/stderr.log")
        )
        self.exits.append(
            RankExit(
                rank=rank,
                pid=int(event["pid"]),
                stage=state.stage if state else None,
                exit_code=event["exit_code"],
                signal=event["signal"],
                finished=bool(state and state.finished),
                detail=keep_last_words(logs[0]) if logs else event.get("message"),
            )
        )

    def has_deaths(self) -> bool:
        """Whether a rank of this node is gone and did not say why: then the agent will, and that is the cause."""
        return any(s.gone and not s.finished and not s.failed for s in self.ranks.values())

    def is_over(self) -> bool:
        """Whether nothing more will happen here."""
        return self.ended is not None or self.agent_gone or self.blocked is not None

    def find_stage(self) -> str:
        """Return the earliest stage that a rank is in now."""
        stages = [s.stage for s in self.ranks.values() if s.stage]
        return min(stages, key=WORLD_STAGES.index) if stages else "rendezvous"
