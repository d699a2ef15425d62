"""`ddpdoctor check` on one node, from the request to the evidence."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path

from ddpdoctor.evidence import STAGES, Absent, Evidence, Library, NodeFacts, StageRecord, merge_evidence
from ddpdoctor.evidence.bundle import renumber_node
from ddpdoctor.evidence.gatherers import GathererFailure, GathererRegistry, merge_extra, run_gatherers
from ddpdoctor.gather.launcher import MPIRUN, SRUN
from ddpdoctor.launch.absence import absent_kinds
from ddpdoctor.launch.ground import Ground
from ddpdoctor.launch.interrupt import Interrupt
from ddpdoctor.launch.local import LocalFindings, look_at_node
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.planning import complete_plan, make_plan
from ddpdoctor.launch.request import CheckOutcome, CheckRequest, Progress
from ddpdoctor.launch.server import TorchServer
from ddpdoctor.launch.torchcheck import require_torch
from ddpdoctor.launch.world.records import collect
from ddpdoctor.launch.world.state import WORLD_STAGES
from ddpdoctor.launch.world.supervisor import Supervisor

EXCHANGE_LIMIT_S = 20.0
"""Seconds for sending and receiving the evidence of all nodes after the world has ended."""
EXCHANGE_AFTER_CUT_S = 45.0
"""The others may need the limit of their own stage to notice that the world is gone."""


def run_check(
    request: CheckRequest,
    progress: Progress,
    gatherers: GathererRegistry | None = None,
    ground: Ground | None = None,
) -> CheckOutcome:
    """Launch a tiny world as asked, examine it, and leave nothing behind.

    Args:
        request: the validated options.
        progress: told what is being done.
        gatherers: of third parties, which look at this node's facts.
        ground: where torch is being imported already; it is cleared here.

    Raises:
        DoctorError: torch is missing, too old or without distributed: nothing can be looked at.
        UsageError: the request contradicts the machine or the launcher.
    """
    origin, started_at = time.monotonic(), datetime.now(timezone.utc)
    require_torch()
    with ground or Ground() as ground:
        interrupt = ground.interrupt
        try:
            plan = make_plan(request, str(ground.place.path))
            run = _Run(plan, ground.server, progress, interrupt, origin, request)
            evidence = run.examine(gatherers or GathererRegistry())
        finally:
            progress.close()
            ground.clear()
        return CheckOutcome(
            evidence=evidence,
            started_at=started_at,
            duration_s=time.monotonic() - origin,
            timings=run.timings(evidence),
            interrupted=interrupt.name,
            node=run.plan.node if run.plan.placed else None,
            own=run.own,
            gatherer_failures=run.gatherer_failures,
            hosting=run.plan.hosting,
            spokesman=run.plan.spokesman,
            prints=run.own is None or run.plan.party == 0 or run.plan.launch.launcher not in (SRUN, MPIRUN),
        )


class _Run:
    """One check on this node."""

    def __init__(
        self,
        plan: Plan,
        server: TorchServer,
        progress: Progress,
        interrupt: Interrupt,
        origin: float,
        request: CheckRequest,
    ) -> None:
        until = None if request.timeout is None else origin + request.timeout
        self.plan = dataclasses.replace(plan, timeout=request.timeout, until=until)
        self._server = server
        self._progress = progress
        self._interrupt = interrupt
        self._origin = origin
        self._request = request
        self.gatherer_failures: tuple[GathererFailure, ...] = ()
        self.own: Evidence | None = None
        """What this node alone saw, once the evidence of all has been joined."""

    def examine(self, gatherers: GathererRegistry) -> Evidence:
        """Go through all stages; whatever happens, what was seen is returned."""
        needs_torch = any(self.plan.runs(stage) for stage in ("smoke", *WORLD_STAGES))
        if needs_torch:
            self._server.start()
        local = look_at_node(self.plan, self._server, self._progress, self._interrupt, self._origin)
        local = self._let_gatherers_look(local, gatherers)
        self.plan = complete_plan(self.plan, self._request, local)
        if not any(self.plan.runs(stage) for stage in WORLD_STAGES):
            return self._without_world(local, "not selected", "skipped")
        blocked = self._why_blocked(local)
        if blocked is not None:
            return self._without_world(local, blocked, "unreached")
        return self._with_world(local)

    def _let_gatherers_look(self, local: LocalFindings, gatherers: GathererRegistry) -> LocalFindings:
        if local.facts is None or self._interrupt.name:
            return local
        extra, failures = run_gatherers(gatherers, local.facts)
        self.gatherer_failures = tuple(failures)
        return dataclasses.replace(local, evidence=merge_extra(local.evidence, extra))

    def _why_blocked(self, local: LocalFindings) -> str | None:
        if self._interrupt.name:
            return f"interrupted by {self._interrupt.name}"
        if local.blocked is None and self.plan.until is not None and time.monotonic() > self.plan.until:
            return f"--timeout {self.plan.timeout:g} expired before any rank could be started"
        return local.blocked

    def _without_world(self, local: LocalFindings, reason: str, status: str) -> Evidence:
        node = self.plan.node
        records = tuple(
            StageRecord(
                node,
                stage,
                status if self.plan.runs(stage) else "skipped",
                reason if self.plan.runs(stage) else "not selected",
            )
            for stage in WORLD_STAGES
        )
        evidence = dataclasses.replace(
            local.evidence, launch=self.plan.launch, stages=(*local.evidence.stages, *records)
        )
        return self._complete(evidence)

    def _with_world(self, local: LocalFindings) -> Evidence:
        supervisor = Supervisor(self.plan, self._server, self._progress, self._interrupt)
        supervisor.run(local.facts or NodeFacts(self.plan.node, os.uname().nodename))
        self.plan = supervisor.world.plan
        world = collect(supervisor.world, supervisor.ending, self._origin)
        before = dataclasses.replace(renumber_node(local.evidence, self.plan.node), launch=world.launch)
        joined = merge_evidence([world, before])
        mine = self._complete(_complete_facts(joined, self.plan.node, supervisor.world.libraries))
        if not self.plan.meets or supervisor.world.agent_gone or not supervisor.world.met:
            return mine
        path = Path(self.plan.workdir) / "node.json"
        path.write_text(json.dumps(mine.to_dict()))
        self._progress.note("exchanging evidence with the other nodes")
        ended_early = supervisor.ending is not None
        merged = supervisor.exchange(path, EXCHANGE_AFTER_CUT_S if ended_early else EXCHANGE_LIMIT_S)
        if merged is None:
            return mine
        self.own = mine
        return Evidence.from_dict(json.loads(Path(merged).read_text()))

    def _complete(self, evidence: Evidence) -> Evidence:
        absent: dict[str, Absent] = {**absent_kinds(self.plan, evidence), **evidence.absent}
        stages = sorted(evidence.stages, key=lambda record: (STAGES.index(record.stage), record.node))
        return dataclasses.replace(evidence, absent=absent, stages=tuple(stages))

    def timings(self, evidence: Evidence) -> dict[str, float]:
        """Return seconds per stage, of the slowest node."""
        found: dict[str, float] = {}
        for record in evidence.stages:
            if record.duration_s is not None:
                found[record.stage] = max(found.get(record.stage, 0.0), record.duration_s)
        return found


def _complete_facts(evidence: Evidence, node: int, loaded: tuple[Library, ...]) -> Evidence:
    """Add to this node's facts what only the meeting and the ranks could tell.

    That is the clock offset against the hosting node, measured while dialling it, and the communication
    libraries that a rank has mapped.
    """
    measured = [
        link
        for link in evidence.links
        if (link.source, link.target) == (node, 0) and link.clock_offset_s is not None
    ]
    best = min(measured, key=lambda link: link.clock_error_s or 0.0, default=None)

    def complete(facts: NodeFacts) -> NodeFacts:
        if facts.node != node:
            return facts
        more = dataclasses.replace(facts, libraries=(*facts.libraries, *loaded))
        if best is None:
            return more
        offset = -(best.clock_offset_s or 0.0)
        return dataclasses.replace(more, clock_offset_s=offset, clock_error_s=best.clock_error_s)

    return dataclasses.replace(evidence, nodes=tuple(complete(facts) for facts in evidence.nodes))
